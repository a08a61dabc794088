// Setup installs what the tests and checks need and this machine lacks: PostgreSQL's programs from Debian's packages, and
// buf, pinned in tools/buf, by npm. It starts nothing.
package main

import (
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("setup: ")
	if err := postgres(); err != nil {
		log.Fatal(err)
	}
	if err := buf(); err != nil {
		log.Fatal(err)
	}
}

func postgres() error {
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
		return nil
	}
	if _, err := exec.LookPath("initdb"); err == nil {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("the tests need PostgreSQL's programs (initdb, postgres): install them and put them on PATH")
	}
	log.Print("installing PostgreSQL from Debian's packages")
	if err := run(".", asRoot("apt-get", "update", "-q")...); err != nil {
		return err
	}
	return run(".", asRoot("apt-get", "install", "-q", "-y", "--no-install-recommends", "postgresql")...)
}

func buf() error {
	if _, err := os.Stat("tools/buf/node_modules/.bin/buf"); err == nil {
		return nil
	}
	if _, err := exec.LookPath("npm"); err != nil {
		return fmt.Errorf("checking the generated code needs buf, which npm installs: install Node.js with npm")
	}
	log.Print("installing buf")
	return run("tools/buf", "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
}

func asRoot(args ...string) []string {
	if os.Geteuid() == 0 {
		return args
	}
	return append([]string{"sudo", "-n"}, args...)
}

func run(dir string, args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%v: %w", args, err)
	}
	return nil
}
