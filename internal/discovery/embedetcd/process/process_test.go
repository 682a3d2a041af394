package process_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd"
	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd/process"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) {
	process.MaybeMain()
	leak.Main(m)
}

const soon = 2 * time.Minute

func config(t *testing.T, dir string) (process.Config, *testkit.Buffer) {
	t.Helper()
	out := new(testkit.Buffer)
	log := logrus.New()
	log.SetOutput(out)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", out)
		}
	})
	return process.Config{
		ListenClient: "127.0.0.1:0", DataDir: dir, Prefix: "/pd", Gateway: true, Log: log, Pause: 10 * time.Millisecond,
	}, out
}

func start(t *testing.T, cfg process.Config) *process.Host {
	t.Helper()
	h, err := process.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h
}

// pid returns the id of the etcd process that uses a data directory.
func pid(t *testing.T, dir string) int {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, name := range names {
		line, err := os.ReadFile(name)
		if err == nil && bytes.HasSuffix(line, []byte("\x00embedded-etcd\x00"+dir+"\x00")) {
			id, err := strconv.Atoi(strings.Split(name, "/")[2])
			require.NoError(t, err)
			return id
		}
	}
	return 0
}

func signal(t *testing.T, dir string, sig syscall.Signal) {
	t.Helper()
	id := pid(t, dir)
	if id <= 0 {
		t.Fatalf("no etcd works in %s", dir) // the signal would go to our process group
	}
	require.NoError(t, syscall.Kill(id, sig))
	if sig == syscall.SIGSTOP {
		fleet.AwaitStop(id)
	}
}

func runs(h *process.Host) func() error {
	return func() error {
		if s := h.State(); s.Ended != "" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	}
}

// Close stops etcd gracefully, and kills a process that does not react.
func TestClose(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		cfg, out := config(t, t.TempDir())
		h := start(t, cfg)
		if stopped {
			signal(t, cfg.DataDir, syscall.SIGSTOP)
		}
		h.Close()
		assert.Equal(t, 0, pid(t, cfg.DataDir), "process that is left")
		if s := slices.DeleteFunc(strings.Split(strings.TrimSpace(out.String()), "\n"), func(line string) bool {
			return line == "" || strings.Contains(line, "etcd is slow") // the machine is busy
		}); len(s) > 0 {
			t.Errorf("an orderly stop says %s", s)
		}
	}
}

// Signals that a terminal or systemd sends to all processes of a
// service do not end etcd: its proxy finishes its requests first.
func TestSignalsOfTheService(t *testing.T) {
	t.Parallel()
	cfg, _ := config(t, t.TempDir())
	h := start(t, cfg)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		signal(t, cfg.DataDir, sig)
	}
	_, err := etcdtest.Client(t, h.Endpoint()).Put(t.Context(), "/k", "v")
	require.NoError(t, err)
	assert.EqualValues(t, 0, h.State().Ends)
}

// The errors of embedetcd reach the caller unchanged.
func TestStartErrors(t *testing.T) {
	t.Parallel()
	cfg, _ := config(t, t.TempDir())
	h := start(t, cfg)
	other, _ := config(t, t.TempDir())
	other.ListenClient = h.Endpoint()
	_, err := process.Start(t.Context(), other)
	assert.ErrorIs(t, err, embedetcd.ErrJoin, "beside an etcd")
	locked, _ := config(t, cfg.DataDir)
	locked.ListenClient = testkit.FreePort(t)
	if _, err := process.Start(t.Context(), locked); !errors.Is(err, embedetcd.ErrLocked) || !strings.Contains(err.Error(), cfg.DataDir) {
		t.Errorf("in one directory: %v", err)
	}
	bad, _ := config(t, t.TempDir())
	bad.ListenClient = "10.0.0.1:2379"
	_, err = process.Start(t.Context(), bad)
	assert.ErrorIs(t, err, embedetcd.ErrListen, "an address of another machine")
	file, _ := config(t, filepath.Join(t.TempDir(), "file"))
	testkit.WriteFile(t, file.DataDir, "")
	_, err = process.Start(t.Context(), file)
	assert.True(t, err != nil && !errors.Is(err, process.ErrDamaged), "a file for a directory: %v", err)
}

// An address that this machine does not have yet, and an unreadable certificate, are not reported
// as damaged files. Following the advice to move the files away would lose their data.
func TestStart_ListenerFails(t *testing.T) {
	t.Parallel()
	cfg, _ := config(t, t.TempDir())
	a := testkit.NewAuthority(t, "ours")
	cfg.TLS.Cert, cfg.TLS.Key = a.Issue("etcd", testkit.Certificate{CN: "etcd", Hosts: []string{"127.0.0.1"}})
	start(t, cfg).Close()
	for _, c := range []struct {
		says   string
		change func(*process.Config)
	}{
		{"cannot assign requested address", func(cfg *process.Config) { cfg.ListenClient = "192.0.2.1:2379" }}, // RFC 5737: assigned to no machine
		{"none.pem", func(cfg *process.Config) { cfg.TLS.Key = filepath.Join(t.TempDir(), "none.pem") }},
	} {
		changed := cfg
		c.change(&changed)
		if _, err := process.Start(t.Context(), changed); err == nil || errors.Is(err, process.ErrDamaged) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.says, err)
		}
	}
	start(t, cfg)
}

// envParent makes the test binary a program with an etcd in the named directory.
const envParent = "PDMESH_TEST_ETCD_PARENT"

// The etcd ends with its proxy, even if the proxy is killed.
func TestEtcd_ExitsWithProxy(t *testing.T) {
	if dir := os.Getenv(envParent); dir != "" {
		_, err := process.Start(t.Context(),
			process.Config{ListenClient: "127.0.0.1:0", DataDir: dir, Prefix: "/pd", Log: logrus.New()})
		require.NoError(t, err)
		fmt.Println("serves")
		select {}
	}
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	parent := exec.Command(self, "-test.run=^TestEtcd_ExitsWithProxy$")
	parent.Env = append(os.Environ(), envParent+"="+dir)
	out := new(testkit.Buffer)
	parent.Stdout = out
	require.NoError(t, parent.Start())
	defer func() { _ = parent.Process.Kill() }()
	testkit.EventuallyTrue(t, soon, func() bool { return strings.Contains(out.String(), "serves") }, "no etcd yet")
	require.NotEqual(t, 0, pid(t, dir), "no etcd")
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	testkit.EventuallyEqual(t, soon, func() int { return pid(t, dir) }, 0, "process that is left")
}
