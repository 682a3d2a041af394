package process_test

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// limit sets a limit of the etcd's process and returns the one before.
func limit(t *testing.T, dir string, what int, n uint64) (was unix.Rlimit) {
	t.Helper()
	id := pid(t, dir)
	if err := unix.Prlimit(id, what, nil, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(id, what, &unix.Rlimit{Cur: n, Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return was
}

// With no descriptor left etcd's purge of old files, every 30 s, ends its process.
// What it says is the first thing in the log, and it comes back.
func TestNoDescriptors(t *testing.T) {
	t.Parallel()
	cfg, out := config(t, t.TempDir())
	h := start(t, cfg)
	cli := testkit.Client(t, h.Endpoint())
	if _, err := cli.Put(t.Context(), "/k", "v"); err != nil {
		t.Fatal(err)
	}
	limit(t, cfg.DataDir, unix.RLIMIT_NOFILE, 3)
	testkit.Eventually(t, soon, func() error {
		if h.State().Ends == 0 {
			return errNotEnded
		}
		return nil
	})
	testkit.Eventually(t, soon, runs(h))
	if resp, err := cli.Get(t.Context(), "/k"); err != nil || len(resp.Kvs) != 1 {
		t.Errorf("%+v, %v", resp, err)
	}
	s := out.String()
	if end := strings.Index(s, "embedded etcd has ended"); end < 0 || !strings.Contains(s[end:], "too many open files") {
		t.Error("the log does not say why it ended")
	}
}
