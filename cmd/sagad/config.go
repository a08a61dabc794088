package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// configBytesMax bounds the configuration file.
const configBytesMax = 1 << 20

// configPath finds the configuration file before the flags are parsed, since it supplies their defaults.
func configPath(args []string) string {
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, "--config="); ok {
			return v
		}
		if a == "--config" && i+1 < len(args) {
			return args[i+1]
		}
		if a == "--" {
			break
		}
	}
	return os.Getenv("SAGAD_CONFIG")
}

// fileResolver takes values of flags from a YAML file. Flags win over the environment, that over the file, that over
// defaults. A command's flags are nested under its name:
//
//	log-level: debug
//	serve:
//	  store: postgres://localhost/sagad
type fileResolver struct {
	path   string
	values map[string]any
	loaded bool
}

func (r *fileResolver) load() error {
	if r.loaded || r.path == "" {
		return nil
	}
	r.loaded = true
	info, err := os.Stat(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("configuration file %s doesn't exist", r.path)
	}
	if err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	if info.Size() > configBytesMax {
		return fmt.Errorf("configuration file %s is larger than %d bytes", r.path, configBytesMax)
	}
	data, err := os.ReadFile(r.path)
	if err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	if err := yaml.Unmarshal(data, &r.values); err != nil {
		return fmt.Errorf("configuration file %s: %w", r.path, err)
	}
	return nil
}

// Validate refuses names that are no flags: a misspelled one would silently do nothing.
func (r *fileResolver) Validate(app *kong.Application) error {
	if err := r.load(); err != nil {
		return err
	}
	return r.check(r.values, app.Node, "")
}

func (r *fileResolver) check(values map[string]any, node *kong.Node, prefix string) error {
	for name, v := range values {
		if nested, ok := v.(map[string]any); ok {
			child := childOf(node, name)
			if child == nil {
				return fmt.Errorf("configuration file %s: there is no command %s%s", r.path, prefix, name)
			}
			if err := r.check(nested, child, prefix+name+"."); err != nil {
				return err
			}
			continue
		}
		known := false
		for _, f := range node.Flags {
			known = known || f.Name == name && name != "help" && name != "config"
		}
		if !known {
			return fmt.Errorf("configuration file %s: there is no flag %s%s", r.path, prefix, name)
		}
	}
	return nil
}

func childOf(node *kong.Node, name string) *kong.Node {
	for _, c := range node.Children {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Resolve gives a flag's value from the file. kong asks resolvers before it looks at the environment, so a flag whose
// variable is set is left alone.
func (r *fileResolver) Resolve(_ *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	if err := r.load(); err != nil {
		return nil, err
	}
	for _, env := range flag.Envs {
		if _, ok := os.LookupEnv(env); ok {
			return nil, nil
		}
	}
	values := r.values
	for _, name := range commandPath(parent) {
		nested, ok := values[name].(map[string]any)
		if !ok {
			return nil, nil
		}
		values = nested
	}
	v, ok := values[flag.Name]
	if !ok {
		return nil, nil
	}
	switch t := v.(type) {
	case map[string]any:
		return nil, nil
	case bool, string:
		return t, nil
	case []any:
		words := make([]string, len(t))
		for i, w := range t {
			words[i] = fmt.Sprint(w)
		}
		return strings.Join(words, ","), nil
	default:
		return fmt.Sprint(t), nil
	}
}

func commandPath(parent *kong.Path) []string {
	if parent == nil {
		return nil
	}
	var names []string
	for n := parent.Node(); n != nil && n.Parent != nil; n = n.Parent {
		names = append([]string{n.Name}, names...)
	}
	return names
}
