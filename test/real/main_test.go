// Package real_test tests the built programs with real vLLM: engines on the CPU that transfer the KV cache
// with NIXL. make test-real runs it; it needs minutes, memory and packages from PyPI (docs/real.md).
package real_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/test/harness"
)

// envReal enables these tests: 1 for all of them, short for a few.
const envReal = "PD_TEST_REAL"

// Values shared by all tests of the package; TestMain sets them.
var (
	binDir string // directory of our programs
	lab    installed
)

// installed is the installation that install.py made, and the process that forks engines.
type installed struct {
	dir    string   // venv/, model/, adapter/
	env    []string // environment with which vLLM runs on any machine
	socket string   // of the zygote
}

func short() bool { return os.Getenv(envReal) == "short" }

func TestMain(m *testing.M) {
	switch os.Getenv(envReal) {
	case "", "0":
		fmt.Fprintln(os.Stderr, "tests with real vLLM are disabled: make test-real runs them")
		os.Exit(0)
	case "1", "short":
	default:
		fmt.Fprintf(os.Stderr, "%s is 1 or short, not %q\n", envReal, os.Getenv(envReal))
		os.Exit(2)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "pdmesh-real-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if binDir = filepath.Join(dir, "bin"); os.Mkdir(binDir, 0o700) != nil {
		return 1, fmt.Errorf("no directory %s", binDir)
	}
	if err := harness.Build(binDir); err != nil {
		return 1, err
	}
	began := time.Now()
	if err := install(); err != nil {
		return 1, err
	}
	logf("installed in %s, after %s", lab.dir, since(began))
	code, err = withZygote(m, dir)
	if code == 0 && err == nil {
		err = leak.Find()
	}
	return code, err
}

// withZygote runs the tests next to the process that has imported vLLM.
func withZygote(m *testing.M, dir string) (code int, err error) {
	f, err := fleet.New(fleet.Options{BinDir: binDir, Dir: filepath.Join(dir, "zygote"), ReadyTimeout: patience})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	began := time.Now()
	lab.socket = filepath.Join(dir, "zygote.sock")
	p, err := f.Start(context.Background(), zygote("zygote", lab.socket))
	if err != nil {
		return 1, err
	}
	logf("vLLM is imported, after %s", since(began))
	if code = m.Run(); code != 0 {
		logf("%s", p.LogTail(20))
	}
	return code, nil
}

// zygote is the process that has imported vLLM and forks engines.
func zygote(name, socket string, env ...string) fleet.Spec {
	return fleet.Spec{
		Name: name, Program: filepath.Join(lab.dir, "venv", "bin", "python"), Env: slices.Concat(lab.env, env),
		Args:  []string{absolute("lab/zygote.py"), socket},
		Ready: func(context.Context) error { return exists(socket) },
	}
}

// runInstall runs install.py, which reports missing requirements, and returns the installation directory.
func runInstall(args ...string) (dir string, err error) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "python3"
	}
	cmd := exec.Command(python, append([]string{absolute("lab/install.py")}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("real vLLM is not installed: %w", err)
	}
	return strings.TrimSpace(out.String()), nil
}

func install() (err error) {
	if lab.dir, err = runInstall(); err != nil {
		return err
	}
	raw, err := os.ReadFile(absolute("lab/environment"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lab.env = append(lab.env, line)
		}
	}
	return nil
}

func exists(path string) error {
	_, err := os.Stat(path)
	return err
}

// absolute returns the absolute path of a file of this package.
func absolute(path string) string {
	out, err := filepath.Abs(path)
	if err != nil {
		panic(err) // there is no working directory
	}
	return out
}

func since(began time.Time) time.Duration { return time.Since(began).Round(time.Second) }

// logf reports the progress of the tests, which take minutes.
func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, "real: "+format+"\n", args...) }
