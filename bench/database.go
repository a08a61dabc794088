package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagad/sagad/internal/pgtest"
)

// database is the private Postgres that both systems use, over a Unix socket. It is durable; beside that it has more shared
// memory than by default, and log enough that no checkpoint falls into a run.
type database struct {
	server  *pgtest.Server
	admin   *pgx.Conn
	socket  string
	port    uint16
	version string
	made    int
}

// peerDatabase is where the peer makes its schemas.
const peerDatabase = "peer"

func openDatabase(ctx context.Context, dir string) (_ *database, err error) {
	d := &database{}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.socket, err = os.MkdirTemp(dir, "sagad-socket-"); err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 { // then the server runs as the user postgres
		u, err := user.Lookup("postgres")
		if err != nil {
			return nil, err
		}
		uid, _ := strconv.Atoi(u.Uid)
		if err := os.Chown(d.socket, uid, -1); err != nil {
			return nil, err
		}
	}
	d.server, err = pgtest.Cluster(pgtest.Options{Fsync: true, Dir: dir, Settings: map[string]string{
		"unix_socket_directories": d.socket,
		"shared_buffers":          "512MB",
		"max_wal_size":            "16GB",
		"checkpoint_timeout":      "1h",
	}})
	if err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(d.server.DSN("postgres"))
	if err != nil {
		return nil, err
	}
	d.port = config.Port
	if d.admin, err = pgx.Connect(ctx, d.url("postgres")); err != nil {
		return nil, err
	}
	var fsync, sync string
	if err := d.admin.QueryRow(ctx, "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')").
		Scan(&d.version, &fsync, &sync); err != nil {
		return nil, err
	}
	if fsync != "on" || sync != "on" {
		return nil, fmt.Errorf("this Postgres has fsync=%s and synchronous_commit=%s: both must be on", fsync, sync)
	}
	if _, err := d.admin.Exec(ctx, "CREATE DATABASE "+peerDatabase); err != nil {
		return nil, err
	}
	return d, nil
}

// url names a database of the server.
func (d *database) url(name string) string {
	q := url.Values{"host": {d.socket}, "port": {strconv.Itoa(int(d.port))}, "sslmode": {"disable"}}
	return "postgres://postgres@/" + name + "?" + q.Encode()
}

// create makes an empty database and gives its URL. drop drops it.
func (d *database) create(ctx context.Context) (name, url string, err error) {
	d.made++
	name = fmt.Sprintf("sagad_%d", d.made)
	_, err = d.admin.Exec(ctx, "CREATE DATABASE "+name)
	return name, d.url(name), err
}

func (d *database) drop(ctx context.Context, name string) error {
	_, err := d.admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	return err
}

// settle makes what was written so far no burden of the next run.
func (d *database) settle(ctx context.Context) error {
	_, err := d.admin.Exec(ctx, "CHECKPOINT")
	return err
}

// log is how many bytes of write-ahead log there are so far, and how many transactions have been committed in the database. The server
// counts the latter up to a second late.
func (d *database) log(ctx context.Context, name string) (bytes, commits int64, err error) {
	err = d.admin.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint, xact_commit FROM pg_stat_database WHERE datname = $1", name).
		Scan(&bytes, &commits)
	return bytes, commits, err
}

func (d *database) close() {
	if d.admin != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = d.admin.Close(ctx)
		cancel()
	}
	if d.server != nil {
		_ = d.server.Stop()
	}
	_ = os.RemoveAll(d.socket)
}
