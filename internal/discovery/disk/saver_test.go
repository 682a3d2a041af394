package disk_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/discovery/disk"
)

// An operator's change is on disk within a second, however often leased instances come
// and go. Changes of leased instances alone cause about one write in ten seconds.
func TestSaver_LeasedInstancesBatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var saves atomic.Int64
		s := disk.NewSaver(disk.SaverOptions{
			Age:  24 * time.Hour,
			Take: func(context.Context) (*disk.State, bool) { saves.Add(1); return nil, true },
		})
		stop := background.Start(t.Context(), s.Run)
		churn := func(seconds int) (written int64) {
			before := saves.Load()
			for range 50 * seconds {
				s.Changed(false)
				time.Sleep(20 * time.Millisecond)
			}
			synctest.Wait()
			return saves.Load() - before
		}
		assert.EqualValues(t, 1, churn(1), "writes in a second after the first change")
		n := churn(100)
		assert.True(t, n >= 9 && n <= 10, "%d writes in 100 s of leased instances alone", n)
		time.Sleep(time.Second)
		s.Changed(true)
		assert.EqualValues(t, 1, churn(1), "writes in the second after an operator's change")
		time.Sleep(time.Minute)
		synctest.Wait()
		before := saves.Load()
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		assert.NotEqual(t, before, saves.Load(), "while nothing changes it grows old")
		stop()
		synctest.Wait()
	})
}

// A failed write, for example because the disk was full, is repeated even if nothing changes.
func TestSaver_RepeatsFailedWrite(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // no directory can be made there
		t.Fatal(err)
	}
	log, _ := test.NewNullLogger()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var saves, failures atomic.Int64
		s := disk.NewSaver(disk.SaverOptions{
			Dir: dir, Age: 24 * time.Hour, Log: log,
			Take: func(context.Context) (*disk.State, bool) { return &disk.State{}, true },
			Wrote: func(_ time.Time, err error) {
				if err != nil {
					failures.Add(1)
				} else {
					saves.Add(1)
				}
			},
		})
		ended := make(chan struct{})
		go func() { s.Run(ctx); close(ended) }()
		s.Changed(true)
		synctest.Wait()
		require.EqualValues(t, 1, failures.Load())
		require.NoError(t, os.Remove(dir))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 1, saves.Load(), "writes in the minute after the failure")
		cancel()
		<-ended
	})
}

// A later write removes the file of a write that a kill interrupted. A fresh one may be another proxy's.
func TestWrite_RemovesInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := time.Now().Add(-2 * time.Minute)
	for name, at := range map[string]time.Time{"snapshot.json.1": old, "snapshot.json.2": time.Now(), "snapshot.json.bak": old, "other.3": old} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), at, at))
	}
	require.NoError(t, disk.Write(dir, &disk.State{}))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.Equal(t, []string{"other.3", "snapshot.json", "snapshot.json.2", "snapshot.json.bak"}, names, "files")
}
