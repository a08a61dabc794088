package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sagad/sagad/sdk/saga"
)

// This is the guard between sagad, which may call a handler more than once, late, or after its undo, and the services,
// which must do each thing once. It is kept small, and to what these services need:
//
//   - an effect is committed together with its key, a digest of what was asked, and the result;
//   - a repeat gets the stored result, also if that was a refusal: a copy that arrives late must not succeed where
//     the saga has been told no;
//   - the same key with another request is refused;
//   - undoing what never happened leaves a tombstone under the action's key, which a late action runs into.

// request names a call of a service.
type request struct {
	key     string
	orderID string
	step    string
}

// refusal is a service's no: nothing was done, and asking again won't help.
type refusal struct{ code, message string }

func (r *refusal) Error() string { return r.code + ": " + r.message }

// States of a request.
const (
	stateDone     = "done"
	stateRejected = "rejected"
	// stateUndone: it was done, and then undone.
	stateUndone = "undone"
	// stateNever: it was undone before it came. The tombstone.
	stateNever = "never"
)

type stored struct {
	digest []byte
	state  string
	result string
}

// once does an action's effect, once for its key, and gives its result.
func once[Out any](ctx context.Context, s *Services, r request, in any, effect func(tx *sql.Tx) (Out, error)) (Out, error) {
	var out, none Out
	digest, err := digestOf(in)
	if err != nil {
		return none, err
	}
	var answer error
	err = s.write(ctx, func(tx *sql.Tx) error {
		before, err := arrive(ctx, tx, r.key)
		switch {
		case err != nil:
			return err
		case before != nil && before.state == stateNever:
			answer = saga.Reject("UNDONE_BEFORE", "the undo of this request came first, so it isn't done any more")
			return nil
		case before != nil && !bytes.Equal(before.digest, digest):
			answer = saga.GiveUp(fmt.Errorf("the key %s was used for another request", r.key))
			return nil
		case before != nil && before.state == stateRejected:
			var no struct{ Code, Message string }
			if err := json.Unmarshal([]byte(before.result), &no); err != nil {
				return err
			}
			answer = saga.Reject(no.Code, no.Message)
			return nil
		case before != nil: // done, whatever became of it later
			return json.Unmarshal([]byte(before.result), &out)
		}
		out, err = effect(tx)
		if no := (*refusal)(nil); errors.As(err, &no) {
			answer = saga.Reject(no.code, no.message)
			return remember(ctx, tx, r, digest, stateRejected, struct{ Code, Message string }{no.code, no.message})
		}
		if err != nil {
			return err
		}
		if err := record(ctx, tx, r, "do"); err != nil {
			return err
		}
		return remember(ctx, tx, r, digest, stateDone, out)
	})
	if err != nil { // nothing was stored, so nothing may be answered
		return none, err
	}
	if answer != nil {
		return none, answer
	}
	return out, nil
}

// undo takes an action's effect back, once for the undo's key. actionKey is the action's. reverse gets the action's
// result from the services' own books: the engine may not know it.
func undo[Out any](ctx context.Context, s *Services, r request, actionKey string, reverse func(tx *sql.Tx, done Out) error) error {
	digest, err := digestOf(actionKey)
	if err != nil {
		return err
	}
	var answer error
	err = s.write(ctx, func(tx *sql.Tx) error {
		before, err := arrive(ctx, tx, r.key)
		switch {
		case err != nil:
			return err
		case before != nil && !bytes.Equal(before.digest, digest):
			answer = saga.CantUndo(fmt.Errorf("the key %s was used for another request", r.key))
			return nil
		case before != nil && before.state == stateNever:
			answer = saga.NothingToUndo
			return nil
		case before != nil:
			return nil
		}
		action, err := find(ctx, tx, actionKey)
		switch {
		case err != nil:
			return err
		case action == nil:
			tombstone := request{key: actionKey, orderID: r.orderID, step: r.step}
			if err := remember(ctx, tx, tombstone, nil, stateNever, nil); err != nil {
				return err
			}
			fallthrough
		case action.state == stateRejected || action.state == stateNever:
			answer = saga.NothingToUndo
			return remember(ctx, tx, r, digest, stateNever, nil)
		case action.state == stateUndone: // by an earlier undo, or by hand
			return remember(ctx, tx, r, digest, stateDone, nil)
		}
		var done Out
		if err := json.Unmarshal([]byte(action.result), &done); err != nil {
			return err
		}
		if err := reverse(tx, done); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE request SET state = ? WHERE key = ?", stateUndone, actionKey); err != nil {
			return err
		}
		if err := record(ctx, tx, r, "undo"); err != nil {
			return err
		}
		return remember(ctx, tx, r, digest, stateDone, nil)
	})
	if err != nil {
		return err
	}
	return answer
}

// arrive counts a call and finds what its key was used for before; nil if for nothing.
func arrive(ctx context.Context, tx *sql.Tx, key string) (*stored, error) {
	if _, err := tx.ExecContext(ctx, "INSERT INTO call (key, calls) VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET calls = calls + 1", key); err != nil {
		return nil, err
	}
	return find(ctx, tx, key)
}

func find(ctx context.Context, tx *sql.Tx, key string) (*stored, error) {
	var r stored
	err := tx.QueryRowContext(ctx, "SELECT digest, state, result FROM request WHERE key = ?", key).Scan(&r.digest, &r.state, &r.result)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &r, nil
}

func remember(ctx context.Context, tx *sql.Tx, r request, digest []byte, state string, result any) error {
	text, err := json.Marshal(result)
	if err != nil {
		return err
	}
	if digest == nil {
		digest = []byte{}
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO request (key, order_id, step, digest, state, result) VALUES (?, ?, ?, ?, ?, ?)",
		r.key, r.orderID, r.step, digest, state, string(text))
	return err
}

func record(ctx context.Context, tx *sql.Tx, r request, direction string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effect (key, order_id, step, direction) VALUES (?, ?, ?, ?)", r.key, r.orderID, r.step, direction)
	return err
}

func digestOf(in any) ([]byte, error) {
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	return sum[:], nil
}

// asAnswer makes a service's no one that sagad understands.
func asAnswer(err error) error {
	if no := (*refusal)(nil); errors.As(err, &no) {
		return saga.Reject(no.code, no.message)
	}
	return err
}
