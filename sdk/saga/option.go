package saga

import (
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// StepOption is an option of a step: [Fields] or [Value], [Retry], [Timeout], [Heartbeat], [Hold], [Compensation].
type StepOption interface {
	step(b *builder, s *sagadv1.Step)
}

// CompensationOption is an option of a step's compensation: [Retry], [Timeout], [LetPass].
type CompensationOption interface {
	compensation(b *builder, step string, c *sagadv1.Compensation)
}

// Mapping builds a JSON document: [Fields] or [Value].
type Mapping interface {
	mapping() *sagadv1.Mapping
}

// Fields builds an object: field names, and the CEL expressions of their values.
type Fields map[string]string

func (f Fields) mapping() *sagadv1.Mapping { return &sagadv1.Mapping{Fields: maps.Clone(f)} }

func (f Fields) step(b *builder, s *sagadv1.Step) { setInput(b, s, f) }

// Value is one CEL expression whose value is the whole document.
type Value string

func (v Value) mapping() *sagadv1.Mapping { return &sagadv1.Mapping{Value: string(v)} }

func (v Value) step(b *builder, s *sagadv1.Step) { setInput(b, s, v) }

func setInput(b *builder, s *sagadv1.Step, m Mapping) {
	if s.Input != nil {
		b.fail(fmt.Errorf("step %s: its input is given twice: give saga.Fields or saga.Value once", s.Name))
		return
	}
	s.Input = m.mapping()
}

// Retry says how a call is tried again: attempt n+1 follows attempt n after a random time between a small floor and
// Initial × Factor^(n-1), cut at Max. Zero values stand for the defaults.
type Retry struct {
	// MaxAttempts in all, the first included. Default 3; 10 for retriable steps and compensations.
	MaxAttempts int
	// Initial is the ceiling of the first delay. Default 1 s.
	Initial time.Duration
	// Factor is what it grows by. Default 2.
	Factor float64
	// Max is the ceiling of all delays. Default 1 h, or Initial if that is longer.
	Max time.Duration
	// Total is the time after the first attempt within which others may start. Default: no limit.
	Total time.Duration
}

func (r Retry) policy(b *builder, step string) *sagadv1.RetryPolicy {
	p := &sagadv1.RetryPolicy{MaxAttempts: b.count("step "+step+": MaxAttempts", r.MaxAttempts, 10_000), Factor: r.Factor}
	for d, to := range map[*time.Duration]**durationpb.Duration{&r.Initial: &p.Initial, &r.Max: &p.Max, &r.Total: &p.Total} {
		if *d != 0 {
			*to = durationpb.New(*d)
		}
	}
	return p
}

func (r Retry) step(b *builder, s *sagadv1.Step) { s.Retry = r.policy(b, s.Name) }

func (r Retry) compensation(b *builder, step string, c *sagadv1.Compensation) {
	c.Retry = r.policy(b, step)
}

// timeout is how long one attempt may take.
type timeout time.Duration

// TimeoutOption goes with steps, compensations and waits.
type TimeoutOption interface {
	StepOption
	CompensationOption
	WaitOption
	ApproveOption
}

// Timeout is how long one attempt may take from its dispatch, queueing included; default 30 s. Of a wait it is how long that waits;
// without it the saga's [Deadline] ends it.
func Timeout(d time.Duration) TimeoutOption { return timeout(d) }

func (t timeout) step(_ *builder, s *sagadv1.Step) { s.Timeout = durationpb.New(time.Duration(t)) }

func (t timeout) compensation(_ *builder, _ string, c *sagadv1.Compensation) {
	c.Timeout = durationpb.New(time.Duration(t))
}

type heartbeat time.Duration

// Heartbeat is how long an attempt may be silent: then its outcome is unknown, and it is tried again without waiting for its timeout.
// Workers tell by themselves that they are alive. 100 ms at least, and no more than 2,000 of them in the timeout. Default: only the
// timeout counts.
func Heartbeat(d time.Duration) StepOption { return heartbeat(d) }

func (h heartbeat) step(_ *builder, s *sagadv1.Step) { s.Heartbeat = durationpb.New(time.Duration(h)) }

type hold struct{}

// Hold makes the saga wait for a person when the step is given up, instead of unwinding.
func Hold() StepOption { return hold{} }

func (hold) step(_ *builder, s *sagadv1.Step) { s.GiveUp = sagadv1.GiveUp_GIVE_UP_HOLD }

type letPass struct{}

// LetPass: when the compensation is given up, the steps before it are undone all the same instead of waiting for a person.
func LetPass() CompensationOption { return letPass{} }

func (letPass) compensation(_ *builder, _ string, c *sagadv1.Compensation) { c.LetPass = true }

type compensation []CompensationOption

// Compensation sets options of how the step is undone; of compensatable steps only.
func Compensation(opts ...CompensationOption) StepOption { return compensation(opts) }

func (o compensation) step(b *builder, s *sagadv1.Step) {
	if s.Compensation == nil {
		s.Compensation = &sagadv1.Compensation{}
	}
	for _, opt := range o {
		if opt == nil {
			b.fail(fmt.Errorf("step %s: an option of its compensation is nil: leave it out", s.Name))
			continue
		}
		opt.compensation(b, s.Name, s.Compensation)
	}
}
