// Fresh makes the generated code anew beside the one that is committed and fails if they differ.
package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
)

// generated lists the folders that hold nothing but generated code.
var generated = []string{"proto/gen", "store/postgres/pgdb", "store/sqlite/litedb"}

func main() {
	log.SetFlags(0)
	log.SetPrefix("fresh: ")
	before, err := read()
	if err != nil {
		log.Fatal(err)
	}
	cmd := exec.Command("make", "--no-print-directory", "generate")
	if out, err := cmd.CombinedOutput(); err != nil {
		log.Fatalf("make generate: %v\n%s", err, out)
	}
	after, err := read()
	if err != nil {
		log.Fatal(err)
	}
	if diff := compare(before, after); len(diff) > 0 {
		for _, line := range diff {
			log.Print(line)
		}
		log.Fatal("the generated code isn't what the sources give: it has been made anew; commit it")
	}
}

func read() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, dir := range generated {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			files[path], err = os.ReadFile(path)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

func compare(before, after map[string][]byte) []string {
	var diff []string
	for path, content := range after {
		switch old, ok := before[path]; {
		case !ok:
			diff = append(diff, fmt.Sprintf("%s is missing", path))
		case !bytes.Equal(old, content):
			diff = append(diff, fmt.Sprintf("%s differs", path))
		}
	}
	for path := range before {
		if _, ok := after[path]; !ok {
			diff = append(diff, fmt.Sprintf("%s is generated no more", path))
		}
	}
	sort.Strings(diff)
	return diff
}
