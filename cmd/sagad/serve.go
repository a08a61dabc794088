package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sagad/sagad/internal/node"
)

// storeFlags name the database. They are secrets when they hold a password: better in the environment or a file.
type storeFlags struct {
	Store  string `help:"postgres://... or sqlite:DIR." required:"" env:"SAGAD_STORE" placeholder:"URL"`
	Shards int    `help:"How many shards a new database is initialised with. Fixed for ever. Default: 64." placeholder:"N"`
}

type serveCommand struct {
	storeFlags
	NATS         string        `name:"nats" help:"URL of the NATS servers, comma-separated." env:"SAGAD_NATS" placeholder:"URL" xor:"nats"`
	NATSEmbedded string        `name:"nats-embedded" help:"Run a NATS server in this process that keeps its streams in DIR. For a single node." type:"path" env:"SAGAD_NATS_EMBEDDED" placeholder:"DIR" xor:"nats"`
	NATSListen   string        `name:"nats-listen" help:"Address of the embedded NATS server. Default: ${default}." default:"127.0.0.1:4222" env:"SAGAD_NATS_LISTEN" placeholder:"HOST:PORT"`
	NATSCreds    string        `name:"nats-creds" help:"Credentials file for NATS." type:"path" env:"SAGAD_NATS_CREDS" placeholder:"FILE"`
	NATSReplicas int           `name:"nats-replicas" help:"Copies of the task stream that NATS keeps." default:"1" env:"SAGAD_NATS_REPLICAS"`
	AckWait      time.Duration `help:"After what silence of a worker a task is delivered again." default:"30s"`

	Listen               string   `help:"Address of the API. Default: ${default}." default:"127.0.0.1:7230" env:"SAGAD_LISTEN" placeholder:"HOST:PORT"`
	Advertise            string   `help:"Where other nodes reach this API, for example http://10.0.0.3:7230. Default: the listen address." env:"SAGAD_ADVERTISE" placeholder:"URL"`
	NodeName             string   `help:"Unique among the nodes that run. Default: host name and port." env:"SAGAD_NODE_NAME" placeholder:"NAME"`
	AllowUnauthenticated bool     `help:"Listen where others reach the API though it has no authentication yet."`
	AllowHost            []string `help:"A name that this server goes by over loopback; may be repeated." placeholder:"NAME"`
}

func (c *serveCommand) Run(ctx context.Context, g *globals) error {
	cfg := node.Config{
		Store:                c.Store,
		Shards:               c.Shards,
		NATS:                 c.NATS,
		NATSEmbedded:         c.NATSEmbedded,
		NATSListen:           c.NATSListen,
		NATSCreds:            c.NATSCreds,
		NATSReplicas:         c.NATSReplicas,
		AckWait:              c.AckWait,
		Listen:               c.Listen,
		Advertise:            c.Advertise,
		Name:                 c.NodeName,
		AllowUnauthenticated: c.AllowUnauthenticated,
		AllowedHosts:         c.AllowHost,
		Version:              version(),
	}
	return g.serve(ctx, cfg, func(n *node.Node) {
		fmt.Fprintf(g.stdout, "sagad serve (version %s) is ready at %s as node %s%s\n", version(), n.URL(), n.Name(), but(n.Waits()))
	})
}

// but goes on after "is ready" with what isn't.
func but(waits string) string {
	if waits == "" {
		return ""
	}
	return ", but " + waits
}

type migrateCommand struct{ storeFlags }

func (c *migrateCommand) Run(ctx context.Context, g *globals) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	meta, err := node.Migrate(ctx, c.Store, c.Shards)
	if err != nil {
		return err
	}
	fmt.Fprintf(g.stdout, "the schema is up to date; cluster %s, %d shards\n", meta.ClusterID, meta.Shards)
	return nil
}
