package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCommand struct{}

func (versionCommand) Run(g *globals) error {
	if g.Format == "json" {
		data, err := json.MarshalIndent(map[string]string{
			"version": version(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
		}, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(g.stdout, "%s\n", data)
		return err
	}
	fmt.Fprintf(g.stdout, "sagad %s, %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}

// release is set by the linker in releases.
var release string

// version names this build.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	if revision != "" {
		return "dev-" + revision[:min(12, len(revision))] + dirty
	}
	return "dev"
}
