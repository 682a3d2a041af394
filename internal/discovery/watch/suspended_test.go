package watch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// suspends is a Prober whose process is suspended during each probe, which fails afterwards.
type suspends struct{ w *Watcher }

func (p suspends) Probe(context.Context, *instance.Instance) (instance.Facts, error) {
	if p.w != nil {
		p.w.SuspendFor(time.Hour)
	}
	return instance.Facts{}, errors.New("connection refused")
}

// After a suspension, no instance is dropped because of earlier findings: neither the
// grace period that has passed meanwhile counts, nor the probes that were running.
func TestSuspended_KeepsAllBeforeList(t *testing.T) {
	t.Parallel()
	r := newLeaseRig(t)
	r.w.suspension.beat(time.Now())
	r.deliver(r.deleted(30, "A"), r.deleted(30, "B"))
	for _, q := range r.unanswered() {
		r.leaseKnown(q)
	}
	name := r.table.layout.Parse(leaseRigKeys["A"])
	e := r.table.entries[name]
	require.True(t, e != nil && e.absent != nil && e.absent.kind == orphaned, "%+v", e)
	// The machine is suspended for two hours. According to the last list,
	// most of the role is registered, and the grace of one hour is over.
	e.absent.since = time.Now().Add(-2 * time.Hour)
	e.absent.failed = orphanFailures - 1
	r.w.SuspendFor(2 * time.Hour)
	r.dropEnded()
	require.Same(t, e, r.table.entries[name], "dropped before the membership was read again")
	require.False(t, r.live(), "dropped before the membership was read again")
	var kvs []*mvccpb.KeyValue
	for _, o := range r.table.order {
		if o.absent == nil {
			kv := leaseKV(r.table.layout.Instance(o.Key), o.leased, o.mod)
			kvs = append(kvs, kv)
		}
	}
	r.load(&etcd.Listing{KVs: kvs, Revision: 31, Cluster: 1, Schema: 1, Requested: r.w.suspension.requested.Load()})
	r.publish(t.Context())
	require.True(t, r.table.entries[name] == e && e.absent.failed == 0 && r.live(),
		"after the list: %+v, live %t", e.absent, r.live())
	e.absent.since = time.Now().Add(-2 * time.Hour)
	r.dropEnded()
	assert.True(t, r.table.entries[name] == nil, "kept although its grace is over")
}

func TestSuspended_InFlightProbeIgnored(t *testing.T) {
	t.Parallel()
	l, err := schema.NewLayout("/pd")
	require.NoError(t, err)
	w := New(nil, Options{Layout: l})
	p := &suspends{w: w}
	w.o.Prober = p
	w.suspension.beat(time.Now())
	ask := newProbeScheduler(w, newTable(l), nil)
	in := &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: "10.0.0.1:1"}}
	if outcome, _ := ask.once(t.Context(), t.Context(), target{in: in, liveness: true}); outcome != nil {
		t.Error("it counts")
	}
	p.w = nil // runs from now on
	if outcome, _ := ask.once(t.Context(), t.Context(), target{in: in, liveness: true}); outcome == nil {
		t.Error("it does not count")
	}
}

// A list that was requested before a second suspension does not end the wait
// after it. Each suspension is noticed once, even by several concurrent picks.
func TestSuspended_AgainBeforeTheList(t *testing.T) {
	t.Parallel()
	var found atomic.Int64
	s := &suspension{after: time.Minute, found: func() { found.Add(1) }}
	now := time.Now()
	resume := func() {
		now = now.Add(time.Hour)
		var picks sync.WaitGroup
		for range 8 {
			picks.Go(func() { s.noticeGap(now) })
		}
		picks.Wait()
	}
	s.beat(now)
	resume()
	first, listed := s.gate.Load(), s.requested.Load()
	resume()
	assert.EqualValues(t, 2, found.Load(), "suspensions")
	s.openGate(listed)
	if g := s.gate.Load(); g == nil || !now.Before(g.until) {
		t.Fatalf("picks do not wait for a list from after the second suspension: %+v", g)
	}
	s.openGate(s.requested.Load())
	select {
	case <-first.open:
	default:
		t.Error("picks of before the second suspension still wait")
	}
	assert.True(t, s.gate.Load() == nil && found.Load() == 2, "%d suspensions, gate %+v", found.Load(), s.gate.Load())
}
