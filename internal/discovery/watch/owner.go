package watch

import (
	"context"
	"maps"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// message is a function that the owner's goroutine calls for another goroutine.
type message func(*owner)

// owner is the state of the goroutine that owns the membership. The types contact and lost hold
// the state of etcd, and of the entries that etcd has lost.
type owner struct {
	*lost
	facts *verify.Facts
	ask   *probeScheduler

	fresh     int64 // number of requests for a list that the last list answers
	announced bool  // Ready is closed

	began    time.Time
	loadedAt time.Time // time of the state that was read from disk

	published time.Time
	buildTime time.Duration
	timer     *time.Timer // runs while a publication is delayed
	logged    map[schema.Name]int64
	queries   sync.WaitGroup
	orphans   int // at the last publication
}

func newOwner(w *Watcher) *owner {
	facts := &verify.Facts{
		Model: w.o.Model, Proxy: w.o.Proxy, Probing: w.o.Prober != nil, Check: w.o.Check, Learns: w.o.Learns,
		Instances: make(map[instance.Key]*verify.Answer),
		Models:    make(map[instance.Key]*verify.Models),
		Pending:   make(map[instance.Key]verify.Wait),
	}
	table := newTable(w.o.Layout)
	o := &owner{
		lost:   &lost{contact: &contact{w: w, table: table}},
		facts:  facts,
		ask:    newProbeScheduler(w, table, facts),
		timer:  time.NewTimer(time.Hour),
		logged: make(map[schema.Name]int64),
	}
	o.table.onKeyLost = o.onKeyLost
	o.timer.Stop()
	return o
}

// runOwner applies messages and publishes snapshots. It blocks only on its inbox.
func (w *Watcher) runOwner(ctx context.Context) {
	o := newOwner(w)
	defer o.timer.Stop()
	tick := time.NewTicker(min(time.Second, max(w.o.OrphanGrace/4, 10*time.Millisecond)))
	defer tick.Stop()
	defer o.ask.stop()
	defer o.queries.Wait()
	o.began = time.Now()
	o.loadState()
	o.sendLeaseQueries(ctx)
	o.schedule(ctx)
	for {
		select {
		case <-ctx.Done():
			if w.o.StateDir != "" {
				w.last = o.stateToSave()
			}
			return
		case m := <-w.inbox:
			m(o)
		case <-o.timer.C:
			o.publish(ctx)
			continue
		case <-tick.C:
			o.dropEnded()
			o.announce()
		}
		o.sendLeaseQueries(ctx)
		o.schedule(ctx)
		o.state() // after the publication: a reader that sees Live finds the listed instances
	}
}

// sendLeaseQueries sends the queries of leases, and writes back the entries that an order
// restores.
func (o *owner) sendLeaseQueries(ctx context.Context) {
	for _, q := range o.unanswered() {
		o.queries.Go(func() {
			q.alive = o.w.leaseAlive(ctx, clientv3.LeaseID(q.lease))
			o.w.send(ctx, func(o *owner) { o.leaseKnown(q) })
		})
	}
	if entries := o.writeBacks; len(entries) > 0 {
		o.queries.Go(func() { o.w.writeBackAll(ctx, entries) })
		o.writeBacks = nil
	}
}

// listFailed notes that a list failed.
func (o *owner) listFailed(err error) {
	o.listFails++
	if !o.listed {
		o.addLocal()
		o.announce()
	}
	o.doubt = time.Now()
	o.w.note(func(s *Status) { s.ListErrors++; s.LastError = err.Error() })
}

// load replaces the registered entries by a list.
func (o *owner) load(l *etcd.Listing) {
	if l.Requested > o.fresh { // it was requested because this process was suspended
		o.doubt = time.Now()
		for _, e := range o.table.absent {
			e.absent = e.absent.onResume(o.doubt)
		}
	}
	why := o.otherStore(l)
	o.foreign = why != ""
	o.missed = o.missing(l)
	if o.foreign {
		o.w.log.WithField("revision", l.Revision).Warn("etcd is another store than before: " + why +
			"; static instances, overrides and settings without a time limit of the former one stay active, and instances that answer are used")
		o.w.note(func(s *Status) { s.Epochs++ })
		for _, e := range o.table.absent {
			e.absent = e.absent.onStoreReplaced()
		}
	}
	known := o.table.revision
	o.table.load(l.KVs, l.Revision)
	if o.foreign {
		o.order = 0
	} else {
		o.clearRemovals(known)
	}
	o.applyOrder(l.Order, !o.foreign && (o.listed || o.restored))
	o.foreign = false
	o.cluster, o.schema, o.listed = l.Cluster, l.Schema, true
	o.w.seen.Store(l.Revision)
	o.reached, o.suspicion = l.Revision, nil
	o.listFails, o.failures = 0, 0
	o.fresh = l.Requested
	o.addLocal()
	o.noteContact()
	o.dropEnded()
	o.w.note(func(s *Status) { s.Lists++ })
	o.published = time.Time{} // a list is published at once
}

// addLocal adds, once, the instances of Options.Local that are not known.
func (o *owner) addLocal() {
	local := o.w.o.Local
	o.w.o.Local = nil // used by this goroutine only
	for k, rec := range local {
		if o.table.find(schema.KindInstance, k) != nil || o.removed(k) {
			continue
		}
		err := schema.FillRecord(k, &rec)
		var value []byte
		if err == nil {
			value, err = schema.EncodeRecord(rec)
		}
		if err != nil {
			o.w.log.WithField("instance", k.String()).WithError(err).Warn("instance of the command line is not usable")
			continue
		}
		e := decodeEntry(schema.Name{Kind: schema.KindInstance, Key: k}, &mvccpb.KeyValue{Value: value}, nil)
		e.absent = &absence{kind: unwritten, proven: true}
		o.table.add(e)
		o.table.sort()
		o.table.touchAll()
		o.local = true
	}
}

// apply applies one response of the watch, which holds whole revisions.
func (o *owner) apply(resp *clientv3.WatchResponse) {
	last := int64(0)
	for _, ev := range resp.Events {
		o.applyEvent(ev)
		last = max(last, ev.Kv.ModRevision)
	}
	// Not the header's revision, which is ahead of the delivered events while a watch catches
	// up.
	if last > o.table.revision {
		o.table.revision = last
		o.noteRevision(last)
	}
	o.reached = max(o.reached, last)
	if resp.IsProgressNotify() {
		// A requested progress notification. Old versions of etcd report too high a revision, so
		// it is used by the audit only.
		o.reached = max(o.reached, resp.Header.Revision)
	}
	o.noteContact()
}

// applyEvent applies one event.
func (o *owner) applyEvent(ev *clientv3.Event) {
	t, kv := o.table, ev.Kv
	if string(kv.Key) == t.layout.Schema() {
		if kv.ModRevision > t.revision {
			o.schema = kv.CreateRevision // that of a DELETE is 0
		}
		return
	}
	if string(kv.Key) == t.layout.Kept() && ev.Type == mvccpb.Event_PUT {
		o.applyOrder(kv, true)
		return
	}
	n := t.layout.Parse(string(kv.Key))
	if ev.Type == mvccpb.Event_DELETE {
		t.remove(kv)
		return
	}
	prev := t.entries[n]
	if n.Kind != schema.KindOther && kv.ModRevision > t.revision && kv.CreateRevision <= t.revision &&
		(prev == nil || prev.absent != nil || prev.create != kv.CreateRevision) {
		// The key was created at a revision at which the table does not have it: this is the
		// watch of another store, which has passed the revision of the former one.
		o.w.Relist(relistEpoch)
	}
	if !t.put(kv) {
		return
	}
	e := t.entries[n]
	if n.Kind != schema.KindOverride {
		o.clearRemoval(e)
	} else if in := t.find(schema.KindInstance, e.Key); in != nil && in.absent != nil && o.removed(e.Key) {
		t.drop(in) // the removal of an entry that etcd does not hold
	}
}

// onWait stores why a pending add still waits, unless it was removed.
func (o *owner) onWait(k instance.Key, wait verify.Wait) {
	if o.table.find(schema.KindPending, k) != nil && o.facts.Pending[k] != wait {
		o.facts.Pending[k] = wait
		o.table.touch(k)
	}
}

// onAnswer applies the outcome of a probe of an instance.
func (o *owner) onAnswer(k instance.Key, v *verify.Answer) {
	e := o.table.find(schema.KindInstance, k)
	if e == nil {
		return // it was removed
	}
	old := o.facts.Instances[k]
	if e.absent != nil && e.absent.kind != unwritten {
		if e.incarnation() == v.Incarnation {
			o.learn(e, v)
			if e.absent.probed() {
				o.onAbsentProbe(e, v)
			}
		}
		return
	}
	if old != nil && old.Incarnation == v.Incarnation && !old.OK() && !v.OK() && old.Reason == v.Reason {
		return // nothing new
	}
	if old.OK() && old.Incarnation == v.Incarnation && o.facts.MustLearn(e.Key, e.rec) &&
		(!v.OK() || maps.Equal(old.Facts.EngineIDs, v.Facts.EngineIDs)) {
		return // the incarnation has not changed; package health judges whether it works
	}
	o.facts.Instances[k] = v
	o.table.touch(k)
}

// learn stores an answer of an entry that etcd does not hold: the models may verify it, and the
// engine ids show a restart of its engine.
func (o *owner) learn(e *entry, v *verify.Answer) {
	if !v.OK() {
		return
	}
	if old := o.facts.Instances[e.Key]; old.OK() && old.Incarnation == v.Incarnation &&
		(!o.facts.MustLearn(e.Key, e.rec) || maps.Equal(old.Facts.EngineIDs, v.Facts.EngineIDs)) {
		return
	}
	o.facts.Instances[e.Key] = v
	o.table.touch(e.Key)
}
