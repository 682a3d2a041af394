// Command modproxy writes one version of the module above as a file tree that go
// takes for a module proxy (GOPROXY=file://DIR), as a tag of that version would be
// served: only what is committed, without the modules below.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: modproxy REPOSITORY VERSION DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintf(os.Stderr, "modproxy: %v\n", err)
		os.Exit(1)
	}
}

func git(repository string, args ...string) ([]byte, error) {
	out, err := exec.Command("git", append([]string{"-C", repository}, args...)...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return out, err
}

func write(repository, version, dir string) error {
	repository, err := filepath.Abs(repository)
	if err != nil {
		return err
	}
	mod, err := git(repository, "show", "HEAD:go.mod")
	if err != nil {
		return err
	}
	file, err := modfile.Parse("go.mod", mod, nil)
	if err != nil {
		return err
	}
	// go install refuses a module that has them.
	if len(file.Replace) > 0 || len(file.Exclude) > 0 {
		return errors.New("go.mod has replace or exclude lines: go install MODULE/...@VERSION refuses it")
	}
	m := module.Version{Path: file.Module.Mod.Path, Version: version}
	if err := module.Check(m.Path, m.Version); err != nil {
		return err
	}
	when, err := git(repository, "show", "-s", "--format=%cI", "HEAD")
	if err != nil {
		return err
	}
	committed, err := time.Parse(time.RFC3339, strings.TrimSpace(string(when)))
	if err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": version, "Time": committed.UTC()})
	if err != nil {
		return err
	}
	var content bytes.Buffer
	if err := zip.CreateFromVCS(&content, m, repository, "HEAD", ""); err != nil {
		return err
	}
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	versions := filepath.Join(dir, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": info, version + ".mod": mod, version + ".zip": content.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(versions, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
