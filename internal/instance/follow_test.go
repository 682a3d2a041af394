package instance_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// publisher publishes snapshots the way a watcher does.
type publisher struct {
	now atomic.Pointer[instance.Snapshot]
}

func newPublisher() *publisher {
	p := &publisher{}
	p.publish(1)
	return p
}

func (p *publisher) publish(revision int64) {
	if old := p.now.Swap(instance.NewSnapshot(revision, nil)); old != nil {
		old.Supersede()
	}
}

func (p *publisher) snapshot() *instance.Snapshot { return p.now.Load() }

func TestFollow_CallsForEachSnapshot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher()
		ctx, cancel := context.WithCancel(t.Context())
		var revisions []int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			var last *instance.Snapshot
			instance.Follow(ctx, p.snapshot, func(prev, next *instance.Snapshot) {
				assert.Same(t, last, prev, "prev, which is the snapshot of the previous call")
				last = next
				revisions = append(revisions, next.Revision)
			})
		}()
		for revision := int64(2); revision <= 5; revision++ {
			synctest.Wait()
			p.publish(revision)
		}
		synctest.Wait()
		cancel()
		<-done
		assert.True(t, len(revisions) == 5 && revisions[0] == 1 && revisions[4] == 5,
			"called for revisions %v, want 1 to 5", revisions)
		p.publish(6)
		assert.Len(t, revisions, 5, "called after Follow has returned")
	})
}

// A snapshot that is published while f runs is observed by the next call, whether f has read it
// or not.
func TestFollow_NeverMissesTheNewest(t *testing.T) {
	t.Parallel()
	p := newPublisher()
	const last = 5000
	go func() {
		for revision := int64(2); revision <= last; revision++ {
			p.publish(revision)
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := int64(0)
	instance.Follow(ctx, p.snapshot, func(_, next *instance.Snapshot) {
		assert.Greater(t, next.Revision, seen, "revision %d after %d", next.Revision, seen)
		if seen = next.Revision; seen == last {
			cancel()
		}
	})
	assert.EqualValues(t, last, seen, "returned at revision")
}

func TestAwait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher()
		at := func(revision int64) func(*instance.Snapshot) bool {
			return func(s *instance.Snapshot) bool { return s.Revision >= revision }
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		assert.True(t, instance.Await(ended, p.snapshot, at(1)), "false for a snapshot that is current")
		assert.False(t, instance.Await(ended, p.snapshot, at(2)), "true although the context has ended")
		met := make(chan bool, 1)
		go func() { met <- instance.Await(t.Context(), p.snapshot, at(3)) }()
		for _, revision := range []int64{2, 3} {
			synctest.Wait()
			assert.Len(t, met, 0, "returned before revision %d", revision)
			p.publish(revision)
		}
		assert.True(t, <-met, "false for revision 3")
	})
}
