package barrier

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sagad/sagad/sdk/saga"
)

// Outcomes of rows.
const (
	// started is what other transactions never see, as it is changed in the one that writes it.
	started   = "started"
	succeeded = "succeeded"
	rejected  = "rejected"
	// nothing: of a compensation, that there was nothing to undo; of an action, the tombstone.
	nothing = "nothing"
)

// row is what is kept of a call.
type row struct {
	// asked is the hash of the request.
	asked   string
	outcome string
	// attempt that was rejected.
	attempt int
	result  string
	// undone: the compensation of this action has been there.
	undone bool
}

// claim takes the key for this transaction, or gives what is stored under it. It waits for a transaction that has claimed it
// and isn't finished.
func (tx Tx) claim(ctx context.Context, key, asked string, attempt int) (*row, error) {
	fresh, err := tx.insert(ctx, key, asked, started, attempt, 0)
	if err != nil || fresh {
		return nil, err
	}
	again, err := tx.exec(ctx, `UPDATE sagad_barrier SET outcome = 'started', attempt = $1, result = ''
		WHERE idempotency_key = $2 AND asked = $3 AND outcome = 'rejected' AND undone = 0 AND attempt < $4`, attempt, key, asked, attempt)
	if err != nil {
		return nil, fmt.Errorf("barrier: claiming %s: %w", key, err)
	}
	if again == 1 {
		return nil, nil
	}
	return tx.find(ctx, key)
}

// bury makes sure that the action isn't done from now on, and gives its row. fresh says that it wasn't buried before.
func (tx Tx) bury(ctx context.Context, key string) (r *row, fresh bool, err error) {
	if fresh, err = tx.insert(ctx, key, "", nothing, 0, 1); err != nil {
		return nil, false, err
	}
	if fresh {
		return &row{outcome: nothing, undone: true}, true, nil
	}
	n, err := tx.exec(ctx, "UPDATE sagad_barrier SET undone = 1 WHERE idempotency_key = $1 AND undone = 0", key)
	if err != nil {
		return nil, false, fmt.Errorf("barrier: marking %s as undone: %w", key, err)
	}
	r, err = tx.find(ctx, key)
	return r, n == 1, err
}

// insert says whether the key was free.
func (tx Tx) insert(ctx context.Context, key, asked, outcome string, attempt, undone int) (bool, error) {
	n, err := tx.exec(ctx, `INSERT INTO sagad_barrier (idempotency_key, asked, outcome, attempt, result, undone) VALUES ($1, $2, $3, $4, '', $5)
		ON CONFLICT (idempotency_key) DO NOTHING`, key, asked, outcome, attempt, undone)
	if err != nil {
		return false, fmt.Errorf("barrier: claiming %s: %w", key, err)
	}
	return n == 1, nil
}

func (tx Tx) find(ctx context.Context, key string) (*row, error) {
	var r row
	var undone int
	err := tx.query(ctx, "SELECT asked, outcome, attempt, result, undone FROM sagad_barrier WHERE idempotency_key = $1", key).
		Scan(&r.asked, &r.outcome, &r.attempt, &r.result, &undone)
	if err != nil {
		return nil, fmt.Errorf("barrier: reading %s: %w", key, err)
	}
	if r.outcome == started {
		return nil, fmt.Errorf("barrier: %s is being used in this transaction: one call is one effect", key)
	}
	r.undone = undone != 0
	return &r, nil
}

// store ends a claim.
func (tx Tx) store(ctx context.Context, key, outcome string, result []byte) error {
	n, err := tx.exec(ctx, "UPDATE sagad_barrier SET outcome = $1, result = $2 WHERE idempotency_key = $3 AND outcome = 'started'", outcome, string(result), key)
	if err != nil {
		return fmt.Errorf("barrier: storing the answer of %s: %w", key, err)
	}
	if n != 1 { // SQLite ends a transaction by itself after some errors
		return errors.New("barrier: the claim is gone: the effect ended the transaction, or passed over an error that did")
	}
	return nil
}

// hashOf is the same for the same request, whatever the order of members.
func hashOf(in any) (string, error) {
	doc, err := saga.Encode(in)
	if err != nil {
		return "", saga.GiveUp(fmt.Errorf("barrier: the input: %w", err))
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber() // digits stay
	if err := dec.Decode(&v); err != nil {
		return "", saga.GiveUp(fmt.Errorf("barrier: the input: %w", err))
	}
	v, _ = full(v)
	if doc, err = json.Marshal(v); err != nil { // sorts members
		return "", err
	}
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:]), nil
}

// full leaves out members that say nothing. A worker whose input type has grown a field writes it as its zero value where the one
// before it, which ran the first attempt, wrote none.
func full(v any) (_ any, says bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if m, says := full(member); says {
				v[name] = m
			} else {
				delete(v, name)
			}
		}
		return v, len(v) > 0
	case []any:
		for i := range v {
			v[i], _ = full(v[i])
		}
		return v, len(v) > 0
	case json.Number:
		return v, v != "0"
	case string:
		return v, v != ""
	case bool:
		return v, v
	}
	return v, v != nil
}
