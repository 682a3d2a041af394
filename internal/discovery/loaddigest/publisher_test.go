package loaddigest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
)

// publish publishes a digest at most once a second until stop is called. change changes a source without load.
func publish(t *testing.T, change func(*loaddigest.Source), write func(value string) error) (stop func()) {
	t.Helper()
	source := &loaddigest.Source{
		Applied:     func() int64 { return 7 },
		InFlight:    func() []schema.LoadEntry { return nil },
		Changed:     func() <-chan struct{} { return nil },
		HasPrompts:  func() bool { return false },
		TakePrompts: func(int) []byte { return nil },
	}
	change(source)
	return background.Start(t.Context(), func(ctx context.Context) {
		loaddigest.Publish(ctx, loaddigest.PublishOptions{
			Source: source, Interval: time.Second, TTL: time.Minute, Log: etcd.LogOrDiscard(nil),
			Lease: func() clientv3.LeaseID { return 1 },
			Write: func(_ context.Context, value string, _ clientv3.LeaseID) error { return write(value) },
		})
	})
}

// A failed write is repeated once per interval, even while the
// load of a leaving instance is polled more often.
func TestPublish_FailedWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		writes := 0
		stop := publish(t, func(s *loaddigest.Source) {
			s.InFlight = func() []schema.LoadEntry { return []schema.LoadEntry{leg("d:1", 1, true)} }
		}, func(string) error {
			writes++
			return errors.New("out of space")
		})
		time.Sleep(10 * time.Second)
		stop()
		assert.True(t, writes >= 9 && writes <= 11, "%d writes in 10 s", writes)
	})
}

// While requests wait, the digest is refreshed even if nothing else changes:
// readers take an old digest as a sign that etcd is unreachable.
func TestPublish_RefreshesABacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		values := map[string]bool{}
		stop := publish(t, func(s *loaddigest.Source) {
			s.Queue = func() []schema.QueueEntry { return []schema.QueueEntry{{Model: "m", Class: 2, Backlog: 50}} }
		}, func(value string) error {
			values[value] = true
			return nil
		})
		time.Sleep(time.Minute)
		stop()
		assert.GreaterOrEqual(t, len(values), int(time.Minute/loaddigest.Refresh)-1, "%d digests in a minute", len(values))
	})
}

// Prompts of a digest that failed to be written are in the next one.
func TestPublish_KeepsPromptsOfAFailedWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var queued atomic.Pointer[string]
		var failures atomic.Int64
		var written []schema.Digest
		stop := publish(t, func(s *loaddigest.Source) {
			s.HasPrompts = func() bool { return queued.Load() != nil }
			s.TakePrompts = func(int) []byte {
				if taken := queued.Swap(nil); taken != nil {
					return []byte(*taken)
				}
				return nil
			}
		}, func(value string) error {
			if failures.Add(-1) >= 0 {
				return errors.New("no leader")
			}
			d, err := schema.DecodeDigest([]byte(value))
			written = append(written, d)
			return err
		})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		failures.Store(2)
		prompts := "prompts"
		queued.Store(&prompts)
		time.Sleep(10 * time.Second)
		stop()
		times := 0
		for _, d := range written {
			if string(d.Prompts) == prompts {
				times++
			}
		}
		assert.Equal(t, 1, times, "published %d times: %+v", times, written)
	})
}
