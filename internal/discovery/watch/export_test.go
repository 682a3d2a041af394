package watch

import (
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// BuildAfter is Build with the records of prev as the last good ones.
func BuildAfter(l schema.Layout, kvs []*mvccpb.KeyValue, revision int64, prev *instance.Snapshot, verified verify.Facts) *instance.Snapshot {
	t := newTable(l)
	for _, in := range prev.All() {
		if in.View == instance.Rejected || in.View == instance.Pending {
			continue
		}
		n := schema.Name{Kind: schema.KindInstance, Key: in.Key}
		t.entries[n] = &entry{Name: n, Key: in.Key, create: in.CreateRevision, originRev: in.CreateRevision, mod: in.ModRevision, good: true, rec: in.Record}
	}
	t.load(kvs, revision)
	return t.snapshot(verified)
}

// Suspend makes the Watcher believe that its process has not run for an hour.
func (w *Watcher) Suspend() { w.suspension.beat(time.Now().Add(-time.Hour)) }

// SuspendFor makes the Watcher believe that its process has not run for a time.
func (w *Watcher) SuspendFor(d time.Duration) { w.SuspendUntil(time.Now(), d) }

// SuspendUntil makes the Watcher believe that its process has not run for a time before now.
func (w *Watcher) SuspendUntil(now time.Time, d time.Duration) { w.suspension.beat(now.Add(-d)) }
