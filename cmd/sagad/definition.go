package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"encoding/json"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

type definitionCommand struct {
	List     definitionList     `cmd:"" help:"List definitions, or the versions of one."`
	Get      definitionGet      `cmd:"" help:"Print a definition as JSON."`
	Graph    definitionGraph    `cmd:"" help:"Print a definition as a Mermaid flow chart."`
	Verify   definitionVerify   `cmd:"" help:"Check a definition in a file; nothing is stored."`
	Register definitionRegister `cmd:"" help:"Check and store a definition. The same content keeps its version."`
	Usage    definitionUsage    `cmd:"" help:"Say which sagas need the versions of a definition."`
	Delete   definitionDelete   `cmd:"" help:"Delete a version that no unfinished saga needs. Ended sagas keep their history."`
}

type definitionList struct {
	Name string `arg:"" optional:"" help:"All versions of this one."`
}

func (c *definitionList) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	all := &sagadv1.ListDefinitionsResponse{}
	req := &sagadv1.ListDefinitionsRequest{Namespace: g.Namespace, Name: c.Name, PageSize: 1000}
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		res, err := a.definitions.ListDefinitions(call, req)
		cancel()
		if err != nil {
			return a.failed(err)
		}
		all.Definitions = append(all.Definitions, res.Definitions...)
		if res.NextPageToken == "" {
			break
		}
		req.PageToken = res.NextPageToken
	}
	if g.Format == "json" {
		return g.json(all)
	}
	if len(all.Definitions) == 0 {
		fmt.Fprintln(g.stdout, "no definitions; register one with `sagad definition register FILE`")
		return nil
	}
	t := newTable(g.stdout, "NAME", "VERSION", "REGISTERED", "HASH")
	for _, d := range all.Definitions {
		t.row(d.Name, fmt.Sprint(d.Version), when(d.RegisteredAt), d.Hash[:min(12, len(d.Hash))])
	}
	return t.end()
}

type definitionGet struct {
	Name    string `arg:"" help:"The definition's name."`
	Version int32  `help:"Default: the latest." placeholder:"N"`
}

func (c *definitionGet) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := a.definitions.GetDefinition(ctx, &sagadv1.GetDefinitionRequest{Namespace: g.Namespace, Name: c.Name, Version: c.Version})
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		return g.json(res)
	}
	v := res.Version
	fmt.Fprintf(g.stderr, "%s version %d, registered %s, hash %s\n", v.Name, v.Version, when(v.RegisteredAt), v.Hash)
	return g.json(v.Definition)
}

type definitionGraph struct {
	Name    string `arg:"" help:"The definition's name."`
	Version int32  `help:"Default: the latest." placeholder:"N"`
}

func (c *definitionGraph) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := a.definitions.GetDefinitionGraph(ctx, &sagadv1.GetDefinitionGraphRequest{Namespace: g.Namespace, Name: c.Name, Version: c.Version})
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		return g.json(res)
	}
	fmt.Fprintln(g.stdout, strings.TrimRight(payload(res.Mermaid, 0), "\n"))
	return nil
}

type definitionVerify struct {
	File string `arg:"" help:"A sagad.v1.Definition as JSON or YAML; - for standard input."`
}

func (c *definitionVerify) Run(ctx context.Context, g *globals) error {
	def, err := readDefinition(g, c.File)
	if err != nil {
		return err
	}
	a, err := g.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := a.definitions.VerifyDefinition(ctx, &sagadv1.VerifyDefinitionRequest{Definition: def})
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		if err := g.json(res); err != nil {
			return err
		}
	} else if len(res.Problems) == 0 {
		fmt.Fprintf(g.stdout, "%s is fine, hash %s\n", def.Name, res.Hash)
	} else {
		for _, p := range res.Problems {
			fmt.Fprintln(g.stdout, problemLine(p))
		}
	}
	if len(res.Problems) > 0 {
		return &exitError{code: exitFailed}
	}
	return nil
}

type definitionRegister struct {
	File string `arg:"" help:"A sagad.v1.Definition as JSON or YAML; - for standard input."`
}

func (c *definitionRegister) Run(ctx context.Context, g *globals) error {
	def, err := readDefinition(g, c.File)
	if err != nil {
		return err
	}
	a, err := g.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := retrying(ctx, func() (*sagadv1.RegisterDefinitionResponse, error) {
		return a.definitions.RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{Namespace: g.Namespace, Definition: def})
	})
	if err != nil {
		return a.failed(err)
	}
	switch v := res.Version; {
	case g.Format == "json":
		return g.json(res)
	case res.Created:
		fmt.Fprintf(g.stdout, "%s version %d registered, hash %s\n", v.Name, v.Version, v.Hash)
	default:
		fmt.Fprintf(g.stdout, "%s version %d had been registered before with this content\n", v.Name, v.Version)
	}
	return nil
}

type definitionUsage struct {
	Name    string `arg:"" help:"The definition's name."`
	Version int32  `help:"Only this one. Default: all." placeholder:"N"`
}

func (c *definitionUsage) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	if c.Version < 0 {
		return &exitError{exitUsage, errors.New("--version must be at least 1")}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := a.definitions.GetDefinitionUsage(ctx, &sagadv1.GetDefinitionUsageRequest{Namespace: g.Namespace, Name: c.Name, Version: c.Version})
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		return g.json(res)
	}
	t := newTable(g.stdout, "VERSION", "UNFINISHED", "SAGAS", "FOR EXAMPLE")
	for _, v := range res.Versions {
		t.row(fmt.Sprint(v.Version), fmt.Sprint(v.Unfinished), fmt.Sprint(v.Sagas), cell(strings.Join(v.Examples, " ")))
	}
	return t.end()
}

type definitionDelete struct {
	Name    string `arg:"" help:"The definition's name."`
	Version int32  `arg:"" help:"The version. Its number is never given out again."`
}

func (c *definitionDelete) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	if c.Version < 1 {
		return &exitError{exitUsage, errors.New("the version must be at least 1")}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := retrying(ctx, func() (*sagadv1.DeleteDefinitionResponse, error) {
		return a.definitions.DeleteDefinition(ctx, &sagadv1.DeleteDefinitionRequest{Namespace: g.Namespace, Name: c.Name, Version: c.Version})
	})
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		return g.json(res)
	}
	fmt.Fprintf(g.stdout, "%s version %d is deleted\n", oneLine(c.Name), c.Version)
	return nil
}

// definitionBytesMax bounds a definition's file.
const definitionBytesMax = 1 << 20

// readDefinition reads a definition as protojson, or as YAML of the same shape.
func readDefinition(g *globals, file string) (*sagadv1.Definition, error) {
	var data []byte
	var err error
	if file == "-" {
		data, err = readAll(g.stdin, definitionBytesMax)
	} else {
		f, oerr := os.Open(file)
		if oerr != nil {
			return nil, &exitError{exitUsage, oerr}
		}
		data, err = readAll(f, definitionBytesMax)
		_ = f.Close()
	}
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("%s: %w", file, err)}
	}
	if ext := strings.ToLower(filepath.Ext(file)); ext == ".yaml" || ext == ".yml" || !json.Valid(data) {
		var doc any
		if err := yaml.Unmarshal(data, &doc); err != nil {
			return nil, &exitError{exitUsage, fmt.Errorf("%s is neither JSON nor YAML: %w", file, err)}
		}
		if data, err = json.Marshal(doc); err != nil {
			return nil, &exitError{exitUsage, fmt.Errorf("%s: a key isn't text: %w", file, err)}
		}
	}
	def := new(sagadv1.Definition)
	if err := protojson.Unmarshal(data, def); err != nil {
		// A registered definition as `definition get -o json` prints it is welcome too.
		wrapped := new(sagadv1.GetDefinitionResponse)
		if protojson.Unmarshal(data, wrapped) == nil && wrapped.Version.GetDefinition() != nil {
			return wrapped.Version.Definition, nil
		}
		return nil, &exitError{exitUsage, fmt.Errorf("%s isn't a sagad.v1.Definition: %w", file, err)}
	}
	return def, nil
}
