package worker_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/natsbus"
	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// allowed reads the allow-list that worker-protocol.md gives.
func allowed(t *testing.T) *server.Permissions {
	t.Helper()
	page, err := os.ReadFile("../../docs/worker-protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(page), "```\npublish:\n")
	list, _, _ = strings.Cut(list, "```")
	pub, sub, ok2 := strings.Cut(list, "subscribe:\n")
	if !ok || !ok2 {
		t.Fatal("the page has no allow-list")
	}
	return &server.Permissions{Publish: &server.SubjectPermission{Allow: strings.Fields(pub)}, Subscribe: &server.SubjectPermission{Allow: strings.Fields(sub)}}
}

// A worker works with the rights that worker-protocol.md names, and can do nothing else with them.
func TestLeastRights(t *testing.T) {
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), Users: []*server.User{
		{Username: "engine", Password: "e"}, {Username: "inventory", Password: "w", Permissions: allowed(t)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	defer ns.Shutdown()
	if !ns.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server didn't start")
	}
	bus, err := natsbus.Connect(t.Context(), natsbus.Config{URL: ns.ClientURL(), User: "engine", Password: "e"})
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	r := &rig{t: t, bus: bus, packs: make(chan *workerv1.ResultPack, 10)}
	if err := bus.Ready(r.ctx()); err != nil {
		t.Fatal(err)
	}
	r.ring, _ = wire.NewKeyring(1, map[int32][]byte{1: make([]byte, 32)})
	if _, err := bus.Serve(ownShard, func(p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		reply(verdicts(accepted, len(p.Results)))
		r.packs <- p
	}); err != nil {
		t.Fatal(err)
	}
	w := r.start(worker.Config{URL: ns.ClientURL(), User: "inventory", Password: "w", Namespace: "shop", InboxPrefix: "_INBOX_inventory"}, func(w *worker.Worker) {
		worker.Compensatable(w, reserve, func(_ context.Context, in numIn) (numOut, error) { return in2out(in), nil },
			func(context.Context, saga.Undo[numIn, numOut]) error { return nil })
	})
	r.publish(r.task("inventory.reserve", do, 1))
	r.publish(r.task("inventory.reserve", undo, 2))
	r.one()
	r.one()
	r.until("acknowledgement", func() bool { return w.Stats().Held == 0 })

	var refusals atomic.Int64
	evil, err := nats.Connect(ns.ClientURL(), nats.UserInfo("inventory", "w"), nats.CustomInboxPrefix("_INBOX_inventory"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				refusals.Add(1)
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer evil.Close()
	want := int64(0)
	for _, subject := range []string{
		"sagad.task.shop.do.inventory.reserve", "sagad.task.shop.do.other", "sagad.announce.shop.do.other", "$JS.API.STREAM.DELETE.SAGAD_TASKS", "$JS.API.STREAM.PURGE.SAGAD_TASKS",
		"$JS.API.STREAM.INFO.SAGAD_TASKS", "$JS.API.STREAM.MSG.GET.SAGAD_TASKS", "$JS.API.CONSUMER.CREATE.SAGAD_TASKS.x.sagad.task.>", "$JS.API.CONSUMER.DELETE.SAGAD_TASKS.shop=do=other",
		"$JS.API.CONSUMER.MSG.NEXT.SAGAD_TASKS.shop=do=other", "$JS.ACK.SAGAD_TASKS.shop=do=other.1.1.1.1.1", "$SYS.REQ.SERVER.PING", "_INBOX.x", "sagad.result",
	} {
		want++
		if err := evil.PublishRequest(subject, "_INBOX_inventory.x", nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, subject := range []string{"sagad.task.>", "sagad.result.*", "_INBOX.>", ">", "$JS.>"} {
		want++
		if _, err := evil.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
	}
	r.until("refusals", func() bool { return refusals.Load() == want })

	// What it may send can't be bent into something that the engine does with the engine's rights.
	before := bus.Stats()
	for _, to := range []string{"sagad.result.8", "sagad.task.shop.do.other", "$JS.API.STREAM.DELETE.SAGAD_TASKS"} {
		for _, subject := range []string{"sagad.result.7", "sagad.announce.shop.do.inventory.reserve"} {
			if err := evil.PublishRequest(subject, to, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.until("unanswered", func() bool { return bus.Stats().Unanswerable == before.Unanswerable+6 })
	r.publish(r.task("inventory.reserve", do, 3))
	r.one()
	if refusals.Load() != want {
		t.Errorf("%d refusals, want %d", refusals.Load(), want)
	}
}
