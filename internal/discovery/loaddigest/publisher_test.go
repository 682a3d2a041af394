package loaddigest_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
)

// A failed write is repeated once per interval, even while the
// load of a leaving instance is polled more often.
func TestPublish_FailedWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var writes atomic.Int64
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			loaddigest.Publish(ctx, loaddigest.PublishOptions{
				Source: &loaddigest.Source{
					Applied:     func() int64 { return 7 },
					InFlight:    func() []schema.LoadEntry { return []schema.LoadEntry{leg("d:1", 1, true)} },
					Changed:     func() <-chan struct{} { return nil },
					HasPrompts:  func() bool { return false },
					TakePrompts: func(int) []byte { return nil },
				},
				Interval: time.Second, TTL: time.Minute, Log: etcd.LogOrDiscard(nil),
				Lease: func() clientv3.LeaseID { return 1 },
				Write: func(context.Context, string, clientv3.LeaseID) error {
					writes.Add(1)
					return errors.New("out of space")
				},
			})
		}()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		n := writes.Load()
		assert.True(t, n >= 9 && n <= 11, "%d writes in 10 s", n)
		cancel()
		<-ended
	})
}

// While requests wait, the digest is refreshed even if nothing else changes:
// readers take an old digest as a sign that etcd is unreachable.
func TestPublish_RefreshesABacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		values := map[string]bool{}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			loaddigest.Publish(ctx, loaddigest.PublishOptions{
				Source: &loaddigest.Source{
					Applied:     func() int64 { return 7 },
					InFlight:    func() []schema.LoadEntry { return nil },
					Changed:     func() <-chan struct{} { return nil },
					HasPrompts:  func() bool { return false },
					TakePrompts: func(int) []byte { return nil },
					Queue:       func() []schema.QueueEntry { return []schema.QueueEntry{{Model: "m", Class: 2, Backlog: 50}} },
				},
				Interval: time.Second, TTL: time.Minute, Log: etcd.LogOrDiscard(nil),
				Lease: func() clientv3.LeaseID { return 1 },
				Write: func(_ context.Context, value string, _ clientv3.LeaseID) error {
					mu.Lock()
					defer mu.Unlock()
					values[value] = true
					return nil
				},
			})
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		assert.GreaterOrEqual(t, len(values), int(time.Minute/loaddigest.Refresh)-1, "%d digests in a minute", len(values))
		mu.Unlock()
		cancel()
		<-ended
	})
}

// Prompts of a digest that failed to be written are in the next one.
func TestPublish_KeepsPromptsOfAFailedWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var queued atomic.Pointer[string]
		var failures atomic.Int64
		var written []schema.Digest
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			loaddigest.Publish(ctx, loaddigest.PublishOptions{
				Source: &loaddigest.Source{
					Applied:    func() int64 { return 7 },
					InFlight:   func() []schema.LoadEntry { return nil },
					Changed:    func() <-chan struct{} { return nil },
					HasPrompts: func() bool { return queued.Load() != nil },
					TakePrompts: func(int) []byte {
						if taken := queued.Swap(nil); taken != nil {
							return []byte(*taken)
						}
						return nil
					},
				},
				Interval: time.Second, TTL: time.Minute, Log: etcd.LogOrDiscard(nil),
				Lease: func() clientv3.LeaseID { return 1 },
				Write: func(_ context.Context, value string, _ clientv3.LeaseID) error {
					if failures.Add(-1) >= 0 {
						return errors.New("no leader")
					}
					d, err := schema.DecodeDigest([]byte(value))
					written = append(written, d)
					return err
				},
			})
		}()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		failures.Store(2)
		prompts := "prompts"
		queued.Store(&prompts)
		time.Sleep(10 * time.Second)
		cancel()
		<-ended
		times := 0
		for _, d := range written {
			if string(d.Prompts) == prompts {
				times++
			}
		}
		assert.Equal(t, 1, times, "published %d times: %+v", times, written)
	})
}
