// Command sagad runs sagas, and talks to a sagad that runs.
//
//	sagad dev                     everything in one process, nothing to install
//	sagad serve --store ...       a node of a cluster
//	sagad saga start order 42     client verbs: saga, definition, ops
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// Exit codes.
const (
	exitFailed = 1
	// exitUsage: the command line or the configuration is wrong.
	exitUsage = 2
	// exitUnreachable: no sagad answers at the address.
	exitUnreachable = 3
	// exitNotFound: there is no such saga, definition or item.
	exitNotFound = 4
	// exitNotCompleted: a saga that was waited for ended otherwise than completed, or hasn't ended.
	exitNotCompleted = 5
)

// globals are the flags of all commands.
type globals struct {
	Config    string `help:"YAML file with values for flags: top-level names for these, commands nested." type:"path" placeholder:"FILE" env:"SAGAD_CONFIG"`
	Address   string `help:"Where sagad answers; for the client verbs." default:"http://127.0.0.1:7230" env:"SAGAD_ADDRESS"`
	Namespace string `short:"n" help:"Namespace." default:"default" env:"SAGAD_NAMESPACE"`
	Format    string `short:"o" help:"text or json." enum:"text,json" default:"text" env:"SAGAD_FORMAT"`
	Actor     string `help:"Who acts, for the history. Default: the user who calls." env:"SAGAD_ACTOR" placeholder:"NAME"`
	LogLevel  string `help:"debug, info, warn or error." enum:"debug,info,warn,error" default:"info" env:"SAGAD_LOG_LEVEL"`
	LogFormat string `help:"text, json or auto (text on a terminal)." enum:"text,json,auto" default:"auto" env:"SAGAD_LOG_FORMAT"`

	stdin          io.Reader
	stdout, stderr io.Writer
}

type cli struct {
	globals

	Dev        devCommand        `cmd:"" help:"Run everything in one process: store, message broker, engine and API."`
	Serve      serveCommand      `cmd:"" help:"Run a node."`
	Migrate    migrateCommand    `cmd:"" help:"Create or upgrade a database's schema."`
	Saga       sagaCommand       `cmd:"" help:"Start sagas, look at them, cancel them."`
	Definition definitionCommand `cmd:"" help:"Register definitions and look at them."`
	Ops        opsCommand        `cmd:"" help:"The operations queue: what waits for a person."`
	Version    versionCommand    `cmd:"" help:"Print the version."`
}

// exitError ends the process with a code. Its text, if any, was meant for the user.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var c cli
	c.stdin, c.stdout, c.stderr = stdin, stdout, stderr
	exited := -1
	parser, err := kong.New(&c,
		kong.Name("sagad"),
		kong.Description("sagad runs sagas: steps across services that are all done, or undone."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Help(help),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exited = code }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(&c.globals),
		kong.Resolvers(&fileResolver{path: configPath(args)}),
	)
	if err != nil {
		fmt.Fprintln(stderr, "sagad:", err)
		return exitFailed
	}
	if len(args) == 0 {
		_, _ = parser.Parse([]string{"--help"})
		return exitUsage
	}
	parsed, err := parser.Parse(args)
	if exited >= 0 {
		// --help has been printed.
		return exited
	}
	if err != nil {
		fmt.Fprintf(stderr, "sagad: %v\nTry `%s --help`.\n", err, commandOf(err))
		return exitUsage
	}
	err = parsed.Run()
	if err == nil {
		return 0
	}
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.err != nil {
			fmt.Fprintln(stderr, "sagad:", exit.err)
		}
		return exit.code
	}
	fmt.Fprintln(stderr, "sagad:", err)
	return exitFailed
}

// commandOf is the command that a usage error is about, as far as it was named.
func commandOf(err error) string {
	words := "sagad"
	var perr *kong.ParseError
	if errors.As(err, &perr) && perr.Context != nil {
		for _, p := range perr.Context.Path {
			if p.Command != nil {
				words += " " + p.Command.Name
			}
		}
	}
	return words
}

// help prints help without the flags of client verbs for commands that don't ask a sagad.
func help(options kong.HelpOptions, ctx *kong.Context) error {
	if cmd := ctx.Selected(); cmd != nil && cmd.Parent != nil && cmd.Parent.Type == kong.ApplicationNode {
		switch cmd.Name {
		case "dev", "serve", "migrate":
			for _, f := range ctx.Model.Flags {
				switch f.Name {
				case "address", "namespace", "format", "actor":
					f.Hidden = true
				}
			}
		}
	}
	return kong.DefaultHelpPrinter(options, ctx)
}
