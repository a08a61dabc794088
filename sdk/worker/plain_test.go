package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protowire"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// plainWorker serves one activity with nothing but a NATS client and hand-written decoding, as docs/worker-protocol.md
// describes it to other languages. Nothing of this module is used below, up to the test.
type plainWorker struct {
	nc        *nats.Conn
	namespace string
	activity  string // without dots here
	// run is the handler: input and key in, output or rejection out.
	run func(input []byte, key string) (output []byte, rejectCode string)
}

type plainTask struct {
	protocol            int32
	key                 string
	input, token        []byte
	deadlineUs, timeout int64
}

func (w *plainWorker) serve(ctx context.Context) error {
	inbox := nats.NewInbox()
	messages := make(chan *nats.Msg, 16)
	sub, err := w.nc.ChanSubscribe(inbox, messages)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	consumer := w.namespace + "=do=" + w.activity
	for ctx.Err() == nil {
		// 1. Ask for the consumer.
		if _, err := w.nc.RequestWithContext(ctx, "sagad.announce."+w.namespace+".do."+w.activity, nil); err != nil {
			return err
		}
		// 2. Pull.
		if err := w.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.SAGAD_TASKS."+consumer, inbox, []byte(`{"batch":1,"expires":5000000000}`)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case m := <-messages:
			if m.Header.Get("Status") != "" {
				continue
			}
			if err := w.message(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *plainWorker) message(ctx context.Context, m *nats.Msg) error {
	// 3. A pack of tasks.
	var results []byte
	waiting := 0
	for _, field := range plainFields(m.Data) {
		if field.num != 1 { // TaskPack.tasks
			continue
		}
		t := decodePlainTask(field.bytes)
		if t.protocol != 1 {
			return w.nc.Publish(m.Reply, []byte(`-NAK {"delay":5000000000}`))
		}
		if time.Now().UnixMicro() > t.deadlineUs {
			continue // too late: no result
		}
		output, code := w.run(t.input, t.key)
		var r []byte
		r = protowire.AppendTag(r, 1, protowire.BytesType) // Result.token
		r = protowire.AppendBytes(r, t.token)
		r = protowire.AppendTag(r, 2, protowire.VarintType) // Result.outcome
		if code == "" {
			r = protowire.AppendVarint(r, 1)                   // OUTCOME_SUCCEEDED
			r = protowire.AppendTag(r, 3, protowire.BytesType) // Result.output
			r = protowire.AppendBytes(r, output)
		} else {
			r = protowire.AppendVarint(r, 2)                   // OUTCOME_REJECTED
			r = protowire.AppendTag(r, 4, protowire.BytesType) // Result.code
			r = protowire.AppendString(r, code)
		}
		r = protowire.AppendTag(r, 9, protowire.BytesType) // Result.worker
		r = protowire.AppendString(r, "plain")
		results = protowire.AppendTag(results, 1, protowire.BytesType) // ResultPack.results
		results = protowire.AppendBytes(results, r)
		waiting++
	}
	// 4. Send the results, 5. wait for the verdicts.
	for waiting > 0 {
		reply, err := w.nc.RequestWithContext(ctx, m.Header.Get("Sagad-Result-Subject"), results)
		if err != nil {
			return err
		}
		again := false
		for _, v := range plainVerdicts(reply.Data) {
			again = again || v == 6 || v == 7 // NOT_OWNER, UNAVAILABLE. A real worker would send only these again, and NOT_OWNER to the shard's own subject.
		}
		if !again {
			break
		}
	}
	// 6. Acknowledge.
	return w.nc.Publish(m.Reply, []byte("+ACK"))
}

type plainField struct {
	num    protowire.Number
	varint uint64
	bytes  []byte
}

func plainFields(b []byte) (out []plainField) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil
		}
		b = b[n:]
		f := plainField{num: num}
		switch typ {
		case protowire.VarintType:
			f.varint, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return nil
		}
		b = b[n:]
		out = append(out, f)
	}
	return out
}

func decodePlainTask(b []byte) (t plainTask) {
	for _, f := range plainFields(b) {
		switch f.num {
		case 1:
			t.protocol = int32(f.varint)
		case 10:
			t.key = string(f.bytes)
		case 13:
			t.input = f.bytes
		case 14:
			t.deadlineUs = int64(f.varint)
		case 15:
			t.token = f.bytes
		case 19:
			t.timeout = int64(f.varint)
		}
	}
	return t
}

// plainVerdicts reads ResultReply.verdicts, packed or not.
func plainVerdicts(b []byte) (out []uint64) {
	for _, f := range plainFields(b) {
		if f.num != 1 {
			continue
		}
		if f.bytes == nil {
			out = append(out, f.varint)
			continue
		}
		for rest := f.bytes; len(rest) > 0; {
			v, n := protowire.ConsumeVarint(rest)
			if n < 0 {
				break
			}
			out, rest = append(out, v), rest[n:]
		}
	}
	return out
}

func TestPlainWorker(t *testing.T) {
	r := newRig(t, 0)
	nc, err := nats.Connect(r.server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	w := &plainWorker{nc: nc, namespace: "shop", activity: "plain", run: func(input []byte, key string) ([]byte, string) {
		var in struct{ N int64 }
		if err := json.Unmarshal(input, &in); err != nil {
			return nil, "BAD_INPUT"
		}
		if in.N == 3 {
			return nil, "NO_THREES"
		}
		return fmt.Appendf(nil, `{"m":%d,"key":%q}`, in.N, key), ""
	}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.serve(ctx) }()
	tasks := make([]*workerv1.Task, 5)
	for i := range tasks {
		tasks[i] = r.task("plain", do, i)
	}
	tasks[4].DeadlineUs = time.Now().Add(-time.Minute).UnixMicro()
	asked := 0
	r.judged(func(_ int, p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		if asked++; asked == 1 {
			reply(verdicts(unavailable, len(p.Results)))
			return
		}
		reply(verdicts(accepted, len(p.Results)))
	})
	r.publish(tasks...)
	r.pack()
	got := r.pack().Results
	if len(got) != 4 {
		t.Fatalf("%d results", len(got))
	}
	for i, res := range got {
		if i == 3 {
			if res.Outcome != rejected || res.Code != "NO_THREES" {
				t.Errorf("%v", res)
			}
		} else if want := fmt.Sprintf(`{"m":%d,"key":%q}`, i, tasks[i].IdempotencyKey); res.Outcome != succeeded || string(res.Output) != want || res.Worker != "plain" {
			t.Errorf("%v, want %s", res, want)
		}
		if opened, err := r.ring.Open(res.Token, time.Now().UnixMicro()); err != nil || opened.SagaId != tasks[i].SagaId {
			t.Errorf("token of %d: %v, %v", i, opened, err)
		}
	}
	r.until("acknowledgement", func() bool { return r.stored() == 0 })
	cancel()
	if err := <-ended; err != nil && ctx.Err() == nil {
		t.Error(err)
	}
}
