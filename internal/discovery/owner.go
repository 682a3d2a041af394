package discovery

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// message is what the follower and the checker tell the owner. Exactly one of
// the fields is set.
type message struct {
	listing   *listing
	created   bool
	events    *clientv3.WatchResponse
	ended     *watchEnd
	listError error
	checked   *checked
}

// owner is the state of the goroutine that owns the membership.
type owner struct {
	w     *Watcher
	table *table
	facts VerifiedFacts
	ask   *askers

	cluster   uint64
	listed    bool // a list was applied
	announced bool // Ready is closed
	following bool // the watch stands
	failures  int  // checks failed in a row
	listFails int  // lists failed in a row

	dirty     bool
	published time.Time
	buildTime time.Duration
	timer     *time.Timer // runs while a publication is put off
	complain  map[name]int64
}

// coalesce is the least time between two publications while changes pour in.
const coalesce = 2 * time.Millisecond

// own applies what comes in and publishes snapshots. It never waits for
// anything but its inbox.
func (w *Watcher) own(ctx context.Context) {
	o := &owner{
		w:        w,
		table:    newTable(w.o.Layout),
		ask:      newAskers(w),
		timer:    time.NewTimer(time.Hour),
		complain: make(map[name]int64),
		facts: VerifiedFacts{
			Model: w.o.Model, Probing: w.o.Prober != nil,
			Instances: make(map[instance.Key]*Verification),
			Pending:   make(map[instance.Key]Wait),
		},
	}
	o.timer.Stop()
	defer o.timer.Stop()
	defer o.ask.stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-w.inbox:
			o.handle(m)
		case v := <-w.verdicts:
			o.hear(v)
		case <-o.timer.C:
			o.publish(ctx)
			continue
		}
		o.schedule(ctx)
	}
}

func (o *owner) handle(m message) {
	switch {
	case m.listing != nil:
		o.load(m.listing)
	case m.created:
		o.following = true
		o.contact()
	case m.events != nil:
		o.apply(m.events)
	case m.ended != nil:
		o.following = false
		o.w.note(func(s *WatcherStatus) {
			s.WatchEnds[m.ended.reason]++
			if m.ended.reason == endCompacted {
				s.Compactions++
			}
			if m.ended.err != nil {
				s.LastError = m.ended.err.Error()
			}
		})
	case m.listError != nil:
		o.listFails++
		o.w.note(func(s *WatcherStatus) { s.ListErrors++; s.LastError = m.listError.Error() })
	case m.checked != nil:
		o.checked(*m.checked)
	}
	o.state()
}

// load replaces the table by a list.
func (o *owner) load(l *listing) {
	if o.listed && (l.revision < o.table.revision || l.cluster != o.cluster) {
		o.w.log.WithField("revision", l.revision).Warn("etcd is another store than before, or an older one: its list replaces the membership")
		o.w.note(func(s *WatcherStatus) { s.Epochs++ })
	}
	o.table.load(l.kvs, l.revision)
	o.w.revision.Store(l.revision)
	o.cluster, o.listed = l.cluster, true
	o.listFails, o.failures = 0, 0
	o.dirty = true
	o.contact()
	o.w.note(func(s *WatcherStatus) { s.Lists++ })
}

// apply applies one response of the watch, which holds whole revisions.
func (o *owner) apply(resp *clientv3.WatchResponse) {
	last, n := int64(0), int64(0)
	for _, ev := range resp.Events {
		changed := false
		if ev.Type == mvccpb.Event_DELETE {
			changed = o.table.remove(ev.Kv)
		} else {
			changed = o.table.put(ev.Kv)
		}
		if changed {
			o.dirty = true
			n++
		}
		last = max(last, ev.Kv.ModRevision)
	}
	if resp.IsProgressNotify() {
		last = resp.Header.Revision
	}
	// Not the header's revision: while a watch catches up, that is ahead of the
	// events that were sent.
	if last > o.table.revision {
		o.table.advance(last)
		o.w.revision.Store(last)
	}
	o.contact()
	o.w.note(func(s *WatcherStatus) { s.Events += n; s.Applied = o.table.applied })
}

// contact notes an answer from etcd.
func (o *owner) contact() {
	o.w.note(func(s *WatcherStatus) { s.LastContact = time.Now(); s.LastError = "" })
}

// checked applies the outcome of a check.
func (o *owner) checked(c checked) {
	if c.err != nil {
		o.failures++
		o.w.note(func(s *WatcherStatus) { s.CheckErrors++; s.LastError = c.err.Error() })
		return
	}
	wasStale := o.failures >= staleAfter
	o.failures = 0
	o.contact()
	o.w.note(func(s *WatcherStatus) { s.Checks++ })
	switch {
	case !o.listed || !o.following:
		// A list is on its way already.
	case c.revision < c.before || c.cluster != o.cluster:
		o.w.Relist(relistEpoch)
	case wasStale:
		// The watch resumes by itself, but nobody says whether etcd is still the
		// same: one list is cheap, and a watch on a wiped store is silent.
		o.w.Relist(relistRegained)
	}
}

// state derives the state from what is known and says so when it changes.
func (o *owner) state() {
	now := Live
	switch {
	case !o.listed:
		now = Cold
	case o.failures >= staleAfter || o.listFails > 0:
		now = Stale
	case !o.following:
		now = Listing
	}
	var was WatcherState
	var why string
	o.w.note(func(s *WatcherStatus) { was, why, s.State = s.State, s.LastError, now })
	switch {
	case was == now:
	case now == Stale:
		o.w.log.WithField("error", why).Warn("lost contact with etcd: serving the last known membership")
	case was == Stale:
		o.w.log.WithField("revision", o.table.revision).Info("etcd answers again")
	}
}

// hear takes what an asker found out.
func (o *owner) hear(v verdict) {
	if v.wait != nil {
		if o.facts.Pending[v.key] != *v.wait {
			o.facts.Pending[v.key] = *v.wait
			o.table.touch(v.key)
			o.dirty = true
		}
		return
	}
	if v.answer == nil {
		return
	}
	old := o.facts.Instances[v.key]
	if old != nil && old.Incarnation == v.answer.Incarnation && !old.ok() && !v.answer.ok() && old.Reason == v.answer.Reason {
		return // nothing new
	}
	o.facts.Instances[v.key] = v.answer
	o.table.touch(v.key)
	o.dirty = true
}

// schedule publishes at once when it was quiet, else as soon as coalesce or
// ten times the cost of a publication has passed, so that a flood of changes
// costs a tenth of one core and not all of it.
func (o *owner) schedule(ctx context.Context) {
	if !o.dirty || !o.listed {
		return
	}
	wait := max(coalesce, 10*o.buildTime) - time.Since(o.published)
	if wait <= 0 {
		o.publish(ctx)
		return
	}
	o.timer.Reset(wait)
}

// publish makes and stores the snapshot of the table.
func (o *owner) publish(ctx context.Context) {
	if !o.dirty || !o.listed {
		return
	}
	o.timer.Stop()
	start := time.Now()
	snap := instance.NewSnapshot(o.table.revision, o.table.view(o.facts))
	old := o.w.snapshot.Swap(snap)
	o.published = time.Now()
	o.buildTime = o.published.Sub(start)
	o.dirty = false
	rejected := o.rejected()
	o.w.note(func(s *WatcherStatus) {
		s.Revision, s.Applied, s.Rejected = o.table.revision, o.table.applied, rejected
	})
	old.Supersede()
	if !o.announced {
		o.announced = true
		close(o.w.ready)
	}
	o.ask.update(ctx, o.targets())
}

// rejected counts what cannot be used and says it once for each revision.
func (o *owner) rejected() int {
	n := 0
	for _, e := range o.table.order {
		bad := e.problem != "" || (e.in != nil && e.in.View == instance.Rejected)
		if !bad {
			continue
		}
		n++
		if o.complain[e.name] == e.mod {
			continue
		}
		o.complain[e.name] = e.mod
		why := e.problem
		if e.in != nil && e.in.Reason != "" {
			why = e.in.Reason
		}
		o.w.log.WithField("instance", e.key.String()).WithField("revision", e.mod).Warn("entry in etcd rejected: " + why)
	}
	for key := range o.complain {
		if _, ok := o.table.entries[key]; !ok {
			delete(o.complain, key)
		}
	}
	return n
}
