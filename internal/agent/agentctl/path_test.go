package agentctl_test

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestDefaultPath(t *testing.T) {
	t.Parallel()
	runtimeDir := t.TempDir()
	env := func(name string) string {
		if name == "XDG_RUNTIME_DIR" {
			return runtimeDir
		}
		return ""
	}
	k := instance.Key{Role: instance.Prefill, Address: "[fd00::1]:8100"}
	path, err := agentctl.DefaultPath(k, env)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(runtimeDir, "pd-agent", "prefill-fd00::1:8100.sock"), path)
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v", info, err)
	}
	long := instance.Key{Role: instance.Decode, Address: strings.Repeat("x", 200) + ":1"}
	if p, err := agentctl.DefaultPath(long, env); err != nil || len(filepath.Base(p)) > 30 {
		t.Errorf("%s, %v", p, err)
	}

	// A directory that others can enter is not used.
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
	if p, err := agentctl.DefaultPath(k, env); err == nil && strings.HasPrefix(p, runtimeDir) {
		t.Errorf("%s is used although others can enter it", p)
	}
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o700))

	_, err = agentctl.Find(k, env)
	assert.ErrorIs(t, err, agentctl.ErrNoAgent, "find without an agent")
	lis, err := agentctl.Listen(t.Context(), path)
	require.NoError(t, err)
	if got, err := agentctl.Find(k, env); err != nil || got != path {
		t.Errorf("find: %s, %v", got, err)
	}
	_, err = agentctl.Listen(t.Context(), path)
	assert.ErrorIs(t, err, agentctl.ErrInUse, "a second agent")
	// A socket that is left after a crash is replaced.
	lis.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, lis.Close())
	_, err = agentctl.NewClient(path).Status(t.Context())
	assert.ErrorIs(t, err, agentctl.ErrNoAgent, "a socket without an agent")
	again, err := agentctl.Listen(context.WithoutCancel(t.Context()), path)
	require.NoError(t, err)
	require.NoError(t, again.Close())
	_, err = os.Lstat(path)
	assert.ErrorIs(t, err, fs.ErrNotExist, "left behind")
}

// A container that was killed and starts with another address finds
// the old socket. Its health check must use the active one.
func TestFind_SkipsDeadSockets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := func(name string) string { return map[string]string{"XDG_RUNTIME_DIR": dir}[name] }
	var paths []string
	var listeners []net.Listener
	for _, address := range []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"} {
		path, err := agentctl.DefaultPath(instance.Key{Role: instance.Decode, Address: address}, env)
		require.NoError(t, err)
		lis, err := agentctl.Listen(t.Context(), path)
		require.NoError(t, err)
		lis.(*net.UnixListener).SetUnlinkOnClose(false)
		paths, listeners = append(paths, path), append(listeners, lis)
	}
	// Other agents of this user may run here: found returns only those of paths that Find returns or names.
	found := func() []string {
		path, err := agentctl.Find(instance.Key{}, env)
		return slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return !strings.Contains(path+fmt.Sprint(err), p) })
	}
	for i, lis := range listeners {
		assert.Equal(t, paths[i:], found(), "%d dead", i)
		_ = lis.Close()
	}
	assert.Len(t, found(), 0, "all dead")
}
