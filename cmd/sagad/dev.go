package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sagad/sagad/internal/node"
	"github.com/sagad/sagad/internal/telemetry"
)

type devCommand struct {
	DataDir    string `help:"Where sagas and tasks are kept. Default: ${default}." default:".sagad" type:"path" env:"SAGAD_DATA_DIR" placeholder:"DIR"`
	Ephemeral  bool   `help:"Keep everything in a temporary folder, and remove it at the end."`
	Listen     string `help:"Address of the API. Port 0 takes a free one. Default: ${default}." default:"127.0.0.1:7230" env:"SAGAD_LISTEN" placeholder:"HOST:PORT"`
	NATSListen string `name:"nats-listen" help:"Address of the embedded NATS server, for workers. Port 0 takes a free one. Default: ${default}." default:"127.0.0.1:4222" env:"SAGAD_NATS_LISTEN" placeholder:"HOST:PORT"`
}

func (c *devCommand) Run(ctx context.Context, g *globals) error {
	dir := c.DataDir
	if c.Ephemeral {
		temp, err := os.MkdirTemp("", "sagad-dev-")
		if err != nil {
			return fmt.Errorf("temporary folder: %w", err)
		}
		defer func() {
			if err := os.RemoveAll(temp); err != nil {
				fmt.Fprintf(g.stderr, "sagad: %s couldn't be removed: %v\n", temp, err)
			}
		}()
		dir = temp
	}
	cfg := node.Config{
		Store:        "sqlite:" + filepath.Join(dir, "store"),
		NATSEmbedded: filepath.Join(dir, "nats"),
		NATSListen:   c.NATSListen,
		Listen:       c.Listen,
		Name:         "dev",
		Version:      version(),
	}
	return g.serve(ctx, cfg, func(n *node.Node) {
		kept := "in " + dir
		if c.Ephemeral {
			kept = "in a temporary folder that is removed at the end"
		}
		fmt.Fprintf(g.stdout, `sagad dev (version %s) is ready.

  API    %s
  NATS   %s
  data   %s

Try, in another terminal:
  go run ./examples/hello                    (in sagad's own folder)
  sagad definition register FILE             (JSON or YAML, such as examples/hello/book-trip.yaml)
  sagad saga start DEFINITION ID --input '{...}' --wait
  sagad saga list
Without sagad on the PATH: go run ./cmd/sagad, or make build, which makes bin/sagad.
Ctrl-C stops it; the next start goes on where this one stopped.
`, version(), n.URL(), n.NATSURL(), kept)
	})
}

// serve runs a node until ctx ends, with telemetry around it.
func (g *globals) serve(ctx context.Context, cfg node.Config, ready func(*node.Node)) (err error) {
	level := g.LogLevel
	tel, err := telemetry.New(ctx, telemetry.Config{
		Log: g.stderr, Level: level, Format: g.LogFormat, Service: "sagad", Version: cfg.Version, Instance: cfg.Name,
	})
	if err != nil {
		return err
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		if err := tel.Shutdown(flush); err != nil {
			tel.Logger.Warn("telemetry didn't stop cleanly", "error", err)
		}
	}()
	cfg.Telemetry = tel
	n, err := node.Open(ctx, cfg)
	if err != nil {
		return err
	}
	if ready != nil {
		ready(n)
	}
	return n.Run(ctx)
}
