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
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	commit := "HEAD"
	switch len(os.Args) {
	case 2:
	case 3:
		commit = os.Args[2]
	default:
		fmt.Fprintln(os.Stderr, "usage: size REPOSITORY [COMMIT]")
		os.Exit(2)
	}
	if err := size(os.Stdout, os.Args[1], commit); err != nil {
		fmt.Fprintf(os.Stderr, "size: %v\n", err)
		os.Exit(1)
	}
}

// size counts what is committed, in a directory of its own.
func size(w io.Writer, repository, commit string) (err error) {
	dir, err := os.MkdirTemp("", "pdmesh-size-")
	if err != nil {
		return fmt.Errorf("size: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	title, err := run(nil, "git", "-C", repository, "log", "-1", "--format=%h %s", commit)
	if err != nil {
		return err
	}
	archive, err := run(nil, "git", "-C", repository, "archive", commit)
	if err != nil {
		return err
	}
	if _, err := run(archive, "tar", "-x", "-C", dir); err != nil {
		return err
	}
	files, err := count(dir)
	if err != nil {
		return err
	}
	counter, err := run(nil, "go", "tool", "scc", "--version")
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s\nGo and assembly, counted by %s\n", title[:len(title)-1], counter)
	writeLines(w, files)
	return nil
}

// run runs a program and returns its output.
func run(stdin []byte, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, exit.Stderr)
	}
	return out, err
}

// file has the counts of one file, as scc prints them.
type file struct {
	Location             string
	Code, Comment, Blank int
}

// count runs scc. Locations are relative to dir.
func count(dir string) ([]file, error) {
	out, err := run(nil, "go", "tool", "scc", "--by-file", "--format", "json", "--include-ext", "go,s", "--no-gitignore", "--no-ignore", dir)
	if err != nil {
		return nil, err
	}
	var languages []struct{ Files []file }
	if err := json.Unmarshal(out, &languages); err != nil {
		return nil, fmt.Errorf("parse the output of scc: %w", err)
	}
	var files []file
	for _, l := range languages {
		for _, f := range l.Files {
			if f.Location, err = filepath.Rel(dir, f.Location); err != nil {
				return nil, err
			}
			files = append(files, f)
		}
	}
	return files, nil
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

func writeLines(w io.Writer, files []file) {
	fmt.Fprintf(w, "| | files | code | comments | share of comments |\n|---|---|---|---|---|\n")
	for _, kind := range []string{product, tests, rest} {
		n, code, comments := 0, 0, 0
		for _, f := range files {
			if kindOf(f.Location) == kind {
				n, code, comments = n+1, code+f.Code, comments+f.Comment
			}
		}
		fmt.Fprintf(w, "| %s | %d | %d | %d | %.1f %% |\n", kind, n, code, comments, 100*float64(comments)/max(float64(code+comments), 1))
	}
}
