package embedetcd

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// While disk space is short, etcd refuses new keys, before a failed write would end its process; existing
// leases are renewed. Once there is space, it accepts everything again, also after a restart.
func TestDiskShort(t *testing.T) {
	t.Parallel()
	// The server's own check would read the real disk and clear the alarm of this test's check.
	cfg := Config{ListenClient: "127.0.0.1:0", DataDir: t.TempDir(), Unsynced: true, manualSpace: true}
	s, err := Start(t.Context(), cfg)
	require.NoError(t, err)
	cli := v3client.New(s.etcd.Server)
	lease, err := cli.Grant(t.Context(), 60)
	require.NoError(t, err)
	var free atomic.Uint64
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	watch := &space{
		server: s.etcd.Server, dir: cfg.DataDir, quota: quotaBytes, log: log, every: time.Millisecond,
		diskSpace: func(string) (uint64, uint64, error) { return free.Load(), 10 << 30, nil },
	}
	free.Store(20 << 20)
	stop := background.Start(t.Context(), watch.run)
	await := func(cond func() error) {
		t.Helper()
		limit := time.NewTimer(time.Minute)
		defer limit.Stop()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for err := cond(); err != nil; err = cond() {
			select {
			case <-tick.C:
			case <-limit.C:
				t.Fatal(err)
			}
		}
	}
	await(func() error {
		if _, err := cli.Put(t.Context(), "/k", "v"); !errors.Is(err, rpctypes.ErrNoSpace) {
			return fmt.Errorf("a put with the disk short: %w", err)
		}
		return nil
	})
	_, err = cli.KeepAliveOnce(t.Context(), lease.ID)
	assert.NoError(t, err, "a renewal with the disk short")
	_, err = cli.Delete(t.Context(), "/", clientv3.WithPrefix())
	assert.NoError(t, err, "a deletion with the disk short")
	free.Store(5 << 30)
	await(func() error { _, err := cli.Put(t.Context(), "/k", "v"); return err })
	free.Store(20 << 20)
	await(func() error {
		if _, err := cli.Put(t.Context(), "/k", "v"); !errors.Is(err, rpctypes.ErrNoSpace) {
			return fmt.Errorf("a put with the disk short again: %w", err)
		}
		return nil
	})
	stop()
	testkit.Contains(t, out.String(), "only 20 MiB are left for "+cfg.DataDir, "accepts writes again")
	_ = cli.Close() // its context has ended with the server
	s.Close()
	cfg.manualSpace = false
	s, err = Start(t.Context(), cfg)
	require.NoError(t, err)
	defer s.Close()
	cli = v3client.New(s.etcd.Server)
	defer cli.Close()
	await(func() error { _, err := cli.Put(t.Context(), "/k", "v"); return err })
}

// An alarm that an earlier process raised is cleared as soon as
// there is space, also if there was none at the start.
func TestSpace_AlarmOfEarlierProcess(t *testing.T) {
	t.Parallel()
	cfg := Config{ListenClient: "127.0.0.1:0", DataDir: t.TempDir(), Unsynced: true, manualSpace: true}
	s, err := Start(t.Context(), cfg)
	require.NoError(t, err)
	defer s.Close()
	cli := v3client.New(s.etcd.Server)
	defer cli.Close()
	const all, need = 10 << 30, reserve
	free := uint64(need + need/8) // not low enough to raise the alarm, too low to clear it
	watch := &space{
		server: s.etcd.Server, dir: cfg.DataDir, quota: quotaBytes, log: etcd.LogOrDiscard(nil),
		diskSpace: func(string) (uint64, uint64, error) { return free, all, nil },
	}
	require.True(t, watch.alarm(t.Context(), pb.AlarmRequest_ACTIVATE), "no alarm")
	watch.check(t.Context())
	_, err = cli.Put(t.Context(), "/k", "v")
	assert.ErrorIs(t, err, rpctypes.ErrNoSpace, "a put with little space")
	free = need + need/4
	watch.check(t.Context())
	_, err = cli.Put(t.Context(), "/k", "v")
	assert.NoError(t, err, "a put with space")
}

// If the history fills the quota of the database, it is compacted and defragmented, and etcd's
// alarm is cleared. If the keys fill the quota, the alarm stays until some are deleted.
func TestSpace_QuotaReached(t *testing.T) {
	t.Parallel()
	cfg := Config{ListenClient: "127.0.0.1:0", DataDir: t.TempDir(), Unsynced: true, quota: 4 << 20, manualSpace: true}
	s, err := Start(t.Context(), cfg)
	require.NoError(t, err)
	defer s.Close()
	cli := v3client.New(s.etcd.Server)
	defer cli.Close()
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	watch := &space{
		server: s.etcd.Server, dir: cfg.DataDir, quota: cfg.quota, log: log,
		diskSpace: func(string) (uint64, uint64, error) { return 5 << 30, 10 << 30, nil },
	}
	value := strings.Repeat("x", 256<<10)
	keys := 0
	// etcd updates the size of the database only every unsyncedBatch, however fast the writes are.
	fill := func(key func(i int) string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			keys++
			if _, err := cli.Put(t.Context(), key(keys), value); !errors.Is(err, rpctypes.ErrNoSpace) {
				return fmt.Errorf("the quota was not reached: %v", err)
			}
			return nil
		})
	}
	fill(func(int) string { return "/one" })
	// Pages are freed only after the reads in progress have ended, so it may take several checks.
	accepts := func(what string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			watch.check(t.Context())
			if _, err := cli.Put(t.Context(), "/k", "v"); err != nil {
				return fmt.Errorf("a put after %s: %w", what, err)
			}
			return nil
		})
	}
	// There is too little space to defragment, but the keys do not fill the quota.
	room := watch.diskSpace
	watch.diskSpace = func(string) (uint64, uint64, error) { return 130 << 10, 1 << 20, nil }
	testkit.Eventually(t, time.Minute, func() error {
		watch.reported = 0
		if watch.check(t.Context()); !strings.Contains(out.String(), "cannot be defragmented") {
			return errors.New("log without space to defragment: " + out.String())
		}
		return nil
	})
	watch.diskSpace = room
	accepts("the history is compacted")
	testkit.Contains(t, out.String(), "accepts writes again")
	out.Reset()
	// Each batch leaves free pages. After slow writes, the database without them is below the quota.
	testkit.Eventually(t, 5*time.Minute, func() error {
		fill(func(i int) string { return fmt.Sprint("/many/", i) })
		if watch.check(t.Context()); !strings.Contains(out.String(), "until some are deleted") {
			return errors.New("log with keys that fill the quota: " + out.String())
		}
		return nil
	})
	_, err = cli.Put(t.Context(), "/k", "v")
	assert.ErrorIs(t, err, rpctypes.ErrNoSpace, "a put with keys that fill the quota")
	_, err = cli.Delete(t.Context(), "/many/", clientv3.WithPrefix())
	require.NoError(t, err)
	accepts("the keys were deleted")
}
