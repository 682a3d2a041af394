package process_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/protobuf/proto"

	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd/process"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func change(t *testing.T, path string, f func([]byte) []byte) {
	t.Helper()
	b := testkit.ReadFile(t, path)
	require.NoError(t, os.WriteFile(path, f(b), 0o600))
}

func garbage(b []byte) []byte {
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func empty([]byte) []byte { return nil }

// Damaged files never cause a stack trace: the error names the directory
// and a remedy, and etcd starts if the files can be repaired.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, db, wal string)
		starts bool
	}{
		{"db garbage", func(t *testing.T, db, _ string) { change(t, db, garbage) }, false},
		{"db cut", func(t *testing.T, db, _ string) {
			change(t, db, func(b []byte) []byte { return b[:3*4096] })
		}, false},
		{"pages zeroed", func(t *testing.T, db, _ string) {
			change(t, db, func(b []byte) []byte { clear(b[2*4096:]); return b })
		}, false},
		{"db empty", func(t *testing.T, db, _ string) { change(t, db, empty) }, true},
		{"db missing", func(t *testing.T, db, _ string) { remove(t, db) }, true},
		{"wal garbage", func(t *testing.T, _, wal string) { change(t, wal, garbage) }, false},
		{"wal empty", func(t *testing.T, _, wal string) { change(t, wal, empty) }, false},
		{"wal cut", func(t *testing.T, _, wal string) {
			change(t, wal, func(b []byte) []byte { return b[:len(bytes.TrimRight(b, "\x00"))-5] })
		}, true},
		{"wal bits turned", func(t *testing.T, _, wal string) {
			change(t, wal, func(b []byte) []byte { b[len(bytes.TrimRight(b, "\x00"))/2] ^= 0x55; return b })
		}, false},
		{"wal missing", func(t *testing.T, _, wal string) { remove(t, filepath.Dir(wal)) }, false},
		{"a file for a directory", func(t *testing.T, db, _ string) {
			member := filepath.Dir(filepath.Dir(db))
			remove(t, member)
			testkit.WriteFile(t, member, "")
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg, out := config(t, t.TempDir())
			cfg.ListenClient = testkit.FreePort(t)
			h := start(t, cfg)
			cli := etcdtest.Client(t, h.Endpoint())
			for range 20 {
				members.Put(t, cli, "/pd/k", strings.Repeat("value ", 1000))
			}
			h.Close()
			wals, err := filepath.Glob(filepath.Join(cfg.DataDir, "member", "wal", "*-*.wal"))
			require.NoError(t, err)
			require.Len(t, wals, 1)
			c.damage(t, filepath.Join(cfg.DataDir, "member", "snap", "db"), wals[0])
			again, err := process.Start(t.Context(), cfg)
			if err == nil {
				if resp, err := cli.Get(t.Context(), "/pd/k"); err != nil || len(resp.Kvs) != 1 {
					t.Errorf("it starts without what was in it: %+v, %v", resp, err)
				}
				again.Close()
			}
			assert.Equal(t, err == nil, c.starts, "starts %t: %v", err == nil, err)
			if err != nil && (!errors.Is(err, process.ErrDamaged) || !strings.Contains(err.Error(), cfg.DataDir) || !strings.Contains(err.Error(), "--state-dir")) {
				t.Errorf("error %v", err)
			}
			assert.NotContains(t, out.String(), "goroutine ")
		})
	}
}

// A first start that was interrupted before anything was written is no damage.
func TestFirstStart_Interrupted(t *testing.T) {
	t.Parallel()
	cfg, _ := config(t, t.TempDir())
	cfg.ListenClient = testkit.FreePort(t)
	snap := filepath.Join(cfg.DataDir, "member", "snap")
	require.NoError(t, os.MkdirAll(snap, 0o700))
	testkit.WriteFile(t, filepath.Join(snap, "db"), "")
	cli := etcdtest.Client(t, start(t, cfg).Endpoint())
	_, err := cli.Put(t.Context(), "/pd/k", "v")
	assert.NoError(t, err)
}

// A first start that was interrupted before the first log entry is no damage, either.
// Etcd would wait for a leader without a limit, because it knows no member.
func TestFirstStart_LogWithoutEntries(t *testing.T) {
	t.Parallel()
	cfg, _ := config(t, t.TempDir())
	cfg.ListenClient = testkit.FreePort(t)
	member := filepath.Join(cfg.DataDir, "member")
	require.NoError(t, os.MkdirAll(filepath.Join(member, "snap"), 0o700))
	testkit.WriteFile(t, filepath.Join(cfg.DataDir, "first-start"), "")
	metadata, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: new(uint64(1)), ClusterID: new(uint64(2))})
	require.NoError(t, err)
	log, err := wal.Create(nil, filepath.Join(member, "wal"), metadata)
	require.NoError(t, err)
	require.NoError(t, log.Close())
	cli := etcdtest.Client(t, start(t, cfg).Endpoint())
	_, err = cli.Put(t.Context(), "/pd/k", "v")
	assert.NoError(t, err)
}

func remove(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(path))
}
