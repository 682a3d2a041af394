// Command size reports the lines of product code, of tests and of the rest in a commit of
// the parent module. Lines are counted by scc at the version in go.mod of this module, so
// that the figures of two commits can be compared. Its working directory must be that of
// this module.
//
//	size REPOSITORY [COMMIT]
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 {
		fmt.Fprintln(os.Stderr, "usage: size REPOSITORY [COMMIT]")
		os.Exit(2)
	}
	if err := size(os.Args[1], append(os.Args[2:], "HEAD")[0]); err != nil {
		fmt.Fprintf(os.Stderr, "size: %v\n", err)
		os.Exit(1)
	}
}

// size counts what is committed, in a directory of its own.
func size(repository, commit string) (err error) {
	dir, err := os.MkdirTemp("", "pdmesh-size-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// run runs a program and returns its output, unless a former one failed.
	run := func(stdin []byte, name string, args ...string) (out []byte) {
		if err != nil {
			return nil
		}
		cmd := exec.Command(name, args...)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), os.Stderr
		out, err = cmd.Output()
		return out
	}
	title := run(nil, "git", "-C", repository, "log", "-1", "--format=%h %s", commit)
	run(run(nil, "git", "-C", repository, "archive", commit), "tar", "-x", "-C", dir)
	counter := run(nil, "go", "tool", "scc", "--version")
	counts := run(nil, "go", "tool", "scc", "--by-file", "--format", "json", "--include-ext", "go,s", "--no-gitignore", "--no-ignore", dir)
	var languages []struct {
		Files []struct {
			Location      string
			Code, Comment int
		}
	}
	if err == nil {
		err = json.Unmarshal(counts, &languages)
	}
	if err != nil {
		return err
	}
	files, code, comments := map[string]int{}, map[string]int{}, map[string]int{}
	for _, l := range languages {
		for _, f := range l.Files {
			location, err := filepath.Rel(dir, f.Location)
			if err != nil {
				return err
			}
			kind := kindOf(location)
			files[kind]++
			code[kind] += f.Code
			comments[kind] += f.Comment
		}
	}
	fmt.Printf("%sGo and assembly, counted by %s\n", title, counter)
	fmt.Print("| | files | code | comments | share of comments |\n|---|---|---|---|---|\n")
	for _, kind := range []string{product, tests, rest} {
		c, n := code[kind], comments[kind]
		fmt.Printf("| %s | %d | %d | %d | %.1f %% |\n", kind, files[kind], c, n, 100*float64(n)/max(float64(c+n), 1))
	}
	return nil
}

// The kinds of files.
const (
	product = "product"
	tests   = "tests"
	rest    = "the rest"
)

// kindOf returns the kind of a file. Simulators, helpers of tests and benchmarks, and
// programs for demonstrations are not product code.
func kindOf(location string) string {
	parts := strings.Split(filepath.ToSlash(location), "/")
	others := map[string][]string{
		"internal": {"fakevllm", "fleet", "testkit", "loadgen"},
		"cmd":      {"fakevllm", "demo", "replay", "bench", "fleetbench", "etcd"},
	}
	no, ok := others[parts[0]]
	switch {
	case strings.HasSuffix(location, "_test.go") || parts[0] == "test":
		return tests
	case ok && len(parts) > 1 && !slices.Contains(no, parts[1]):
		return product
	default:
		return rest
	}
}
