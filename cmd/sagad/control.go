package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

type sagaSignal struct {
	ID      string `arg:"" help:"The saga's id."`
	Signal  string `arg:"" help:"The signal's name, as the definition has it."`
	Key     string `help:"Names this signal: the same key is the same signal, however often it is sent. Default: a new one." placeholder:"KEY"`
	Payload string `help:"What it says: JSON text, @FILE, or - for standard input." placeholder:"JSON"`
}

func (c *sagaSignal) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	payload, err := g.document("payload", c.Payload)
	if err != nil {
		return err
	}
	key := c.Key
	if key == "" {
		key = uuid.NewString()
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := retrying(call, func() (*sagadv1.SignalSagaResponse, error) {
		return a.sagas.SignalSaga(call, &sagadv1.SignalSagaRequest{Namespace: g.Namespace, Id: c.ID, Signal: c.Signal, Key: key, Payload: payload})
	})
	if err != nil {
		return a.failed(err)
	}
	switch {
	case g.Format == "json":
		return g.json(res)
	case !res.Fresh && c.Key != "":
		fmt.Fprintf(g.stdout, "saga %s had this signal before (key %s); nothing new was told\n", oneLine(c.ID), oneLine(key))
	default:
		fmt.Fprintf(g.stdout, "saga %s has the signal %s (key %s)\n", oneLine(c.ID), oneLine(c.Signal), oneLine(key))
	}
	return nil
}

type sagaPause struct {
	ID     string `arg:"" help:"The saga's id."`
	Reason string `help:"Why; it stays in the history." required:"" placeholder:"TEXT"`
}

func (c *sagaPause) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id := uuid.NewString()
	res, err := retrying(call, func() (*sagadv1.PauseSagaResponse, error) {
		return a.sagas.PauseSaga(call, &sagadv1.PauseSagaRequest{Namespace: g.Namespace, Id: c.ID, Reason: c.Reason, RequestId: id})
	})
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		return g.json(res)
	}
	fmt.Fprintf(g.stdout, "saga %s is paused (%s): results are taken in, nothing is sent out. Let it go on with `sagad saga resume %s`.\n",
		oneLine(c.ID), status(res.Status), shellWord(c.ID))
	return nil
}

type sagaResume struct {
	ID     string `arg:"" help:"The saga's id."`
	Reason string `help:"Why; it stays in the history." placeholder:"TEXT"`
}

func (c *sagaResume) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id := uuid.NewString()
	res, err := retrying(call, func() (*sagadv1.ResumeSagaResponse, error) {
		return a.sagas.ResumeSaga(call, &sagadv1.ResumeSagaRequest{Namespace: g.Namespace, Id: c.ID, Reason: c.Reason, RequestId: id})
	})
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		return g.json(res)
	}
	fmt.Fprintf(g.stdout, "saga %s goes on (%s)\n", oneLine(c.ID), status(res.Status))
	return nil
}

type sagaExplain struct {
	ID string `arg:"" help:"The saga's id."`
}

func (c *sagaExplain) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := a.sagas.ExplainSaga(ctx, &sagadv1.ExplainSagaRequest{Namespace: g.Namespace, Id: c.ID})
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		return g.json(res)
	}
	t := newTable(g.stdout)
	t.row("saga", c.ID)
	t.row("status", status(res.Status))
	t.row("explanation", res.Explanation)
	if res.Step != "" {
		t.row("step", at(res.Step, res.Item))
	}
	if res.Since != nil {
		t.row("since", fmt.Sprintf("%s (%s ago)", when(res.Since), ago(res.Since)))
	}
	if res.Until != nil {
		t.row("until", when(res.Until)+" at the latest")
	}
	if res.Help != "" {
		t.row("what helps", res.Help)
	}
	return t.end()
}

type sagaMigrate struct {
	ID         string            `arg:"" optional:"" help:"The saga's id; or --all with --definition and --from-version."`
	To         int32             `help:"The version to move to." required:"" placeholder:"N"`
	Names      map[string]string `help:"Names that changed between the versions, old=new; may be repeated." placeholder:"OLD=NEW" mapsep:","`
	Reason     string            `help:"Why; it stays in the history. Needed unless it is a dry run." placeholder:"TEXT"`
	DryRun     bool              `help:"Only say whether it could be done."`
	All        bool              `help:"All unfinished sagas of --definition and --from-version, one after the other."`
	Definition string            `help:"With --all: of this definition." placeholder:"NAME"`
	From       int32             `help:"With --all: of this version." name:"from-version" placeholder:"N"`
}

func (c *sagaMigrate) check() error {
	switch {
	case c.To < 1:
		return errors.New("--to must be at least 1: name the version to move to")
	case c.All && c.ID != "":
		return errors.New("--all and an id: choose one")
	case !c.All && c.ID == "":
		return errors.New("name a saga, or say --all with --definition and --from-version")
	case c.All && (c.Definition == "" || c.From < 1):
		return errors.New("--all needs --definition and --from-version")
	case !c.All && (c.Definition != "" || c.From != 0):
		return errors.New("--definition and --from-version go with --all")
	case c.All && c.From == c.To:
		return errors.New("--from-version and --to are the same version")
	case !c.DryRun && strings.TrimSpace(c.Reason) == "":
		return errors.New("--reason is missing: say why, it stays in the history; or try it with --dry-run")
	}
	return nil
}

func (c *sagaMigrate) Run(ctx context.Context, g *globals) error {
	if err := c.check(); err != nil {
		return &exitError{exitUsage, err}
	}
	a, err := g.api()
	if err != nil {
		return err
	}
	if !c.All {
		res, err := c.migrate(ctx, g, a, c.ID)
		if err != nil {
			return a.failed(err)
		}
		if g.Format == "json" {
			if err := g.json(res); err != nil {
				return err
			}
		} else {
			fmt.Fprintln(g.stdout, c.line(c.ID, res))
			for _, o := range res.Obstacles {
				fmt.Fprintln(g.stdout, "  "+oneLine(o))
			}
		}
		if len(res.Obstacles) > 0 {
			return &exitError{code: exitFailed}
		}
		return nil
	}
	return c.all(ctx, g, a)
}

// all migrates each unfinished saga of the version. Those that are migrated leave the list, so it is read whole at first.
func (c *sagaMigrate) all(ctx context.Context, g *globals, a *api) error {
	var ids []string
	req := &sagadv1.ListSagasRequest{Namespace: g.Namespace, PageSize: 1000, OldestFirst: true, Filter: &sagadv1.SagaFilter{
		Definition: c.Definition, Version: c.From, Statuses: []sagadv1.SagaStatus{
			sagadv1.SagaStatus_SAGA_STATUS_RUNNING, sagadv1.SagaStatus_SAGA_STATUS_COMPENSATING, sagadv1.SagaStatus_SAGA_STATUS_STUCK,
		},
	}}
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		res, err := a.sagas.ListSagas(call, req)
		cancel()
		if err != nil {
			return a.failed(err)
		}
		for _, s := range res.Sagas {
			ids = append(ids, s.Id)
		}
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			break
		}
	}
	moved, stayed := 0, 0
	for _, id := range ids {
		res, err := c.migrate(ctx, g, a, id)
		if ctx.Err() != nil {
			return a.failed(err)
		}
		if err != nil {
			// One saga's refusal doesn't keep the others; a server that is away does.
			failed := a.failed(err)
			var exit *exitError
			if errors.As(failed, &exit) && exit.code == exitUnreachable || !refusedHere(err) {
				return fmt.Errorf("at saga %s, after %s: %w", oneLine(id), plural(moved+stayed, "saga"), failed)
			}
			res = &sagadv1.MigrateSagaResponse{Obstacles: []string{failed.Error()}}
		}
		if len(res.Obstacles) > 0 {
			stayed++
		} else {
			moved++
		}
		if g.Format == "json" {
			if err := g.jsonLineOf(id, res); err != nil {
				return err
			}
			continue
		}
		line := c.line(id, res)
		if len(res.Obstacles) > 0 {
			line += ": " + strings.Join(res.Obstacles, "; ")
		}
		fmt.Fprintln(g.stdout, oneLine(line))
	}
	what := "moved"
	if c.DryRun {
		what = "can move"
	}
	fmt.Fprintf(g.stderr, "%s of version %d: %d %s to version %d, %d can't\n", plural(len(ids), "saga"), c.From, moved, what, c.To, stayed)
	if stayed > 0 {
		return &exitError{code: exitFailed}
	}
	return nil
}

func (c *sagaMigrate) migrate(ctx context.Context, g *globals, a *api, id string) (*sagadv1.MigrateSagaResponse, error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// One id for all tries: a repeat is answered as the first.
	request := uuid.NewString()
	return retrying(call, func() (*sagadv1.MigrateSagaResponse, error) {
		return a.sagas.MigrateSaga(call, &sagadv1.MigrateSagaRequest{
			Namespace: g.Namespace, Id: id, Version: c.To, Names: c.Names, DryRun: c.DryRun, Reason: c.Reason, RequestId: request,
		})
	})
}

func (c *sagaMigrate) line(id string, res *sagadv1.MigrateSagaResponse) string {
	switch {
	case len(res.Obstacles) > 0 && c.DryRun:
		return fmt.Sprintf("saga %s can't move to version %d", id, c.To)
	case len(res.Obstacles) > 0:
		return fmt.Sprintf("saga %s stays as it is", id)
	case c.DryRun:
		return fmt.Sprintf("saga %s can move to version %d", id, c.To)
	}
	return fmt.Sprintf("saga %s runs under version %d", id, res.Version)
}
