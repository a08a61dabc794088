package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/sagad/sagad/engine"
	"github.com/sagad/sagad/internal/pgtest"
	"github.com/sagad/sagad/internal/server"
	"github.com/sagad/sagad/internal/server/servertest"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/outbox"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/store/memory"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var quiet = slog.New(slog.DiscardHandler)

type order struct {
	Item string `json:"item"`
	Qty  int64  `json:"qty"`
}

var (
	pack       = saga.Activity[order, string]{Name: "t.pack"}
	placeOrder = saga.Define[order, string]("place-order", saga.Pivot("pack", pack, saga.Value("input"), saga.Timeout(time.Hour)), saga.Return(saga.Value("pack")))
)

// node is a sagad in this process, whose sagas never end.
type node struct {
	rpc   *connect.Server
	sagas sagadv1connect.SagaServiceClient
	stop  func() error
}

func newNode() (*node, error) {
	st := memory.New(4)
	eng, err := engine.New(engine.Config{Name: "test", Logger: quiet}, st, servertest.NewBus(func(*workerv1.Task) *workerv1.Result { return nil }))
	if err != nil {
		return nil, err
	}
	srv, err := server.New(context.Background(), server.Config{}, eng, st)
	if err != nil {
		return nil, err
	}
	if err := eng.Start(context.Background()); err != nil {
		return nil, err
	}
	n := &node{rpc: srv.RPC(), stop: func() error {
		srv.Stop()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return eng.Stop(ctx)
	}}
	n.sagas = sagadv1connect.NewSagaServiceClient(connect.NewClient(connectinprocess.New(n.rpc)))
	return n, nil
}

func startNode(t *testing.T) *node {
	t.Helper()
	n, err := newNode()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := client.Register(t.Context(), n.client(t, nil), placeOrder); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) client(t *testing.T, l *link) *client.Client {
	t.Helper()
	var transport connect.Transport = connectinprocess.New(n.rpc)
	if l != nil {
		l.Transport, transport = transport, l
	}
	c, err := client.New("", client.WithTransport(transport), client.WithRetryFor(0))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// all are the ids of the node's sagas, and their inputs.
func (n *node) all(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for token := ""; ; {
		res, err := n.sagas.ListSagas(context.Background(), &sagadv1.ListSagasRequest{PageToken: token, PageSize: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range res.Sagas {
			got, err := n.sagas.GetSaga(context.Background(), &sagadv1.GetSagaRequest{Id: s.Id})
			if err != nil {
				t.Fatal(err)
			}
			if _, twice := all[s.Id]; twice {
				t.Errorf("two sagas %s", s.Id)
			}
			all[s.Id] = got.Saga.Input
		}
		if token = res.NextPageToken; token == "" {
			return all
		}
	}
}

func (n *node) ids(t *testing.T) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(n.all(t)))
}

// link is a connection to a node. It notes starts in the order in which they are sent, and breaks.
type link struct {
	connect.Transport
	// breaks says whether the connection breaks before the request arrives, or before the answer does.
	breaks func(id string) (before, after bool)
	// hold, if set, is closed to let requests through.
	hold chan struct{}
	sent chan string // of ids, if set

	mu     sync.Mutex
	starts []string
}

func (l *link) NewClientStream(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
	s, err := l.Transport.NewClientStream(ctx, spec)
	return &linkStream{ClientStream: s, l: l, ctx: ctx}, err
}

type linkStream struct {
	connect.ClientStream
	l     *link
	ctx   context.Context
	after bool
}

var errBroken = connect.NewError(connect.CodeUnavailable, "the connection broke")

func (s *linkStream) Send(msg any) error {
	req, ok := msg.(*sagadv1.StartSagaRequest)
	if !ok {
		return s.ClientStream.Send(msg)
	}
	s.l.mu.Lock()
	s.l.starts = append(s.l.starts, req.Id)
	s.l.mu.Unlock()
	if s.l.sent != nil {
		s.l.sent <- req.Id
	}
	if s.l.hold != nil {
		select {
		case <-s.l.hold:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
	if s.l.breaks != nil {
		var before bool
		if before, s.after = s.l.breaks(req.Id); before {
			return errBroken
		}
	}
	return s.ClientStream.Send(msg)
}

func (s *linkStream) Receive(msg any) error {
	err := s.ClientStream.Receive(msg)
	if s.after {
		return errBroken
	}
	return err
}

// tx is a transaction of the test's, on any database.
type tx struct {
	outbox.Tx
	exec     func(query string) error
	commit   func() error
	rollback func()
}

// database has the outbox's table and one named item.
type database struct {
	outbox.DB
	begin func() tx
	count func(query string) (int64, error)
}

var databases = map[string]func(t *testing.T) *database{
	"sqlite": func(t *testing.T) *database {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "test.db")+
			"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		return standard(t, db, outbox.SQLite, outbox.SQLiteDB(db))
	},
	"postgres": func(t *testing.T) *database {
		db, err := sql.Open("pgx", pgtest.Start(t))
		if err != nil {
			t.Fatal(err)
		}
		return standard(t, db, outbox.Postgres, outbox.PostgresDB(db))
	},
	"pgx": func(t *testing.T) *database {
		ctx := context.Background()
		pool, err := pgxpool.New(ctx, pgtest.Start(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return setUp(t, &database{DB: outbox.PgxPool(pool),
			begin: func() tx {
				x, err := pool.Begin(ctx)
				if err != nil {
					t.Error(err)
					panic(err)
				}
				return tx{Tx: outbox.Pgx(x), exec: func(query string) error { _, err := x.Exec(ctx, query); return err },
					commit: func() error { return x.Commit(ctx) }, rollback: func() { _ = x.Rollback(ctx) }}
			},
			count: func(query string) (n int64, err error) { return n, pool.QueryRow(ctx, query).Scan(&n) },
		})
	},
}

func standard(t *testing.T, db *sql.DB, of func(*sql.Tx) outbox.Tx, d outbox.DB) *database {
	t.Cleanup(func() { _ = db.Close() })
	ctx := context.Background()
	return setUp(t, &database{DB: d,
		begin: func() tx {
			x, err := db.BeginTx(ctx, nil)
			if err != nil {
				t.Error(err)
				panic(err)
			}
			return tx{Tx: of(x), commit: x.Commit, rollback: func() { _ = x.Rollback() }, exec: func(query string) error { _, err := x.ExecContext(ctx, query); return err }}
		},
		count: func(query string) (n int64, err error) { return n, db.QueryRowContext(ctx, query).Scan(&n) },
	})
}

func setUp(t *testing.T, db *database) *database {
	t.Helper()
	x := db.begin()
	for range 2 {
		if err := outbox.CreateTable(t.Context(), x.Tx); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.exec("CREATE TABLE item (name TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	if err := x.commit(); err != nil {
		t.Fatal(err)
	}
	return db
}

// onEach runs a test on each database.
func onEach(t *testing.T, test func(t *testing.T, db *database)) {
	for name, open := range databases {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// do runs body in a transaction and commits it.
func (db *database) do(t *testing.T, body func(x tx)) {
	t.Helper()
	x := db.begin()
	defer x.rollback()
	body(x)
	if err := x.commit(); err != nil {
		t.Fatal(err)
	}
}

// place commits an order with its saga.
func (db *database) place(t *testing.T, ids ...string) {
	t.Helper()
	db.do(t, func(x tx) {
		for _, id := range ids {
			start(t, x, id, order{Item: id, Qty: 1})
		}
	})
}

func start(t *testing.T, x tx, id string, in order, opts ...outbox.StartOption) {
	t.Helper()
	if err := x.exec(fmt.Sprintf("INSERT INTO item VALUES ('%s')", id)); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Start(t.Context(), x.Tx, placeOrder, id, in, opts...); err != nil {
		t.Fatal(err)
	}
}

func (db *database) rows(t *testing.T, where string) int64 {
	t.Helper()
	n, err := db.count("SELECT count(*) FROM sagad_outbox WHERE " + where)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// round lets a relay take a batch.
func round(t *testing.T, r *outbox.Relay) int {
	t.Helper()
	n, err := r.Round(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}
