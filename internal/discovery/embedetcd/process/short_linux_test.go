package process_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd/process"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// limit sets a limit of the etcd process and returns the previous one.
func limit(t *testing.T, dir string, what int, n uint64) (was unix.Rlimit) {
	t.Helper()
	id := pid(t, dir)
	require.NoError(t, unix.Prlimit(id, what, nil, &was))
	require.NoError(t, unix.Prlimit(id, what, &unix.Rlimit{Cur: n, Max: was.Max}, nil))
	return was
}

// Without a free file descriptor, etcd's purge of old files, every 30 s, ends
// its process. The first log line has the reason, and etcd is started again.
func TestNoDescriptors(t *testing.T) {
	t.Parallel()
	cfg, out := config(t, t.TempDir())
	h := start(t, cfg)
	cli := etcdtest.Client(t, h.Endpoint())
	members.Put(t, cli, "/k", "v")
	limit(t, cfg.DataDir, unix.RLIMIT_NOFILE, 3)
	testkit.Until(t, soon, h.State, func(s process.State) bool { return s.Ends != 0 })
	testkit.Eventually(t, soon, runs(h))
	resp, err := cli.Get(t.Context(), "/k")
	assert.True(t, err == nil && len(resp.Kvs) == 1, "%+v, %v", resp, err)
	s := out.String()
	end := strings.Index(s, "embedded etcd has ended")
	assert.True(t, end >= 0 && strings.Contains(s[end:], "too many open files"), "the log does not say why it ended")
}

// A limit of file descriptors that is too low for etcd is not
// reported as damaged files, which the operator should move away.
func TestStart_DescriptorLimitNotDamage(t *testing.T) {
	const name = "PD_TEST_LIMITED_DIR"
	if dir := os.Getenv(name); dir != "" { // the process with the limit
		cfg, _ := config(t, dir)
		h, err := process.Start(t.Context(), cfg)
		if err == nil {
			h.Close()
		}
		require.True(t, err != nil && !errors.Is(err, process.ErrDamaged), "error %v", err)
		return
	}
	t.Parallel()
	cfg, _ := config(t, t.TempDir())
	start(t, cfg).Close()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -n 140 && exec "$0" -test.run '^TestStart_DescriptorLimitNotDamage$'`, os.Args[0])
	cmd.Env = append(os.Environ(), name+"="+cfg.DataDir)
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, string(out))
}
