package watch

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// auditRetry is the pause after a failed audit.
const auditRetry = 200 * time.Millisecond

// audited is the outcome of one audit.
type audited struct {
	etcd.Listing // keys only
	err          error
}

// audit compares, on a jittered interval, all keys that etcd holds with what
// the watch has delivered. It is the only thing that finds a watch which is silent
// without an error, as one on a wiped store is.
func (w *Watcher) audit(ctx context.Context) {
	wait := etcd.Jitter(w.o.AuditInterval)
	failed, hurried := false, 0
	answers := &etcd.Patience{Client: w.cli, Longest: etcd.LongestWait}
	for {
		early := w.pauseOrDoubt(ctx, wait, hurried < earlyAudits)
		if ctx.Err() != nil {
			return
		}
		hurried++
		if !early {
			hurried = 0
		}
		a := audited{}
		before, start := w.seen.Load(), time.Now()
		got, err := etcd.List(ctx, answers.LimitFor(len(w.Snapshot().All())), w.cli, w.o.Layout, !failed, clientv3.WithKeysOnly())
		answers.Learn(time.Since(start), err == nil)
		a.Listing, a.err = got, err
		a.Before = before
		wait = etcd.Jitter(w.o.AuditInterval)
		if err != nil { // at another member, if there is one: this one may hang, and the watch with it
			wait = min(wait, etcd.Jitter(auditRetry))
		}
		failed = err != nil
		if !w.send(ctx, message{audited: &a}) {
			return
		}
	}
}

const (
	// doubtPause is the time from an audit that found something to the next. A
	// watch that can report how far it is has done so by then, and one that hangs
	// has been still for long enough at the second.
	doubtPause = 1200 * time.Millisecond
	// earlyAudits is how many audits in a row may come early: a membership that
	// always changes leaves a doubt each time.
	earlyAudits = 2
)

// pauseOrDoubt waits until the next audit is due: d, or less if the last one
// has left a doubt and mayDoubt. It reports whether that was so.
func (w *Watcher) pauseOrDoubt(ctx context.Context, d time.Duration, mayDoubt bool) (early bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	doubt := w.doubt
	if !mayDoubt {
		doubt = nil
	}
	due := time.Now().Add(d)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			select {
			case <-w.doubt: // it comes too late for this round
			default:
			}
			return early
		case <-doubt:
			if time.Until(due) > doubtPause {
				timer.Reset(doubtPause)
			}
			early, doubt = true, nil
		}
	}
}

// suspicion is what an audit found to differ, and what is known of the watch at
// that time. One audit alone proves nothing: the watch may be on its way.
type suspicion struct {
	keys     map[schema.Name]int64 // with the mod_revision that etcd has, 0 for none
	revision int64                 // of the audit
	watch    int64                 // that the watch had reached
	still    time.Time             // since when it has not moved
	at       time.Time             // of the audit
}

// apart is how long after one audit another one can confirm it. etcd before
// 3.4.25 and 3.5.8 may say that a watch has reached a revision while events up to
// there are still under way (etcd-io/etcd#15220).
const apart = 300 * time.Millisecond

// stillFor is how long a watch must not have moved at all to count as silent,
// when it differs from the audits.
const stillFor = 2 * time.Second

// audited applies the outcome of an audit. What differs in two audits running
// is drift, if the watch has since passed the revision of the first, or has not
// moved at all: a watch that only lags moves.
func (c *contact) audited(a *audited) {
	if a.err != nil {
		c.failures++
		c.doubt = time.Now()
		c.w.note(func(s *Status) { s.AuditErrors++; s.LastError = a.err.Error() })
		return
	}
	c.w.note(func(s *Status) { s.Audits++; s.LastAudit = time.Now() })
	c.answered(a.Before, a.Revision, a.Cluster, a.Member)
	if !c.listed || !c.following {
		c.suspicion = nil // a list is on its way
		return
	}
	now := &suspicion{keys: c.differences(a), revision: a.Revision, watch: c.reached, still: time.Now(), at: time.Now()}
	was := c.suspicion
	c.suspicion = nil
	if len(now.keys) == 0 {
		return
	}
	if was != nil && time.Since(was.at) < apart {
		c.suspicion = was
		if was.watch != now.watch {
			was.still = now.still
		}
		return
	}
	if was != nil && was.watch == now.watch {
		now.still = was.still
	}
	if was != nil && (now.watch >= was.revision || time.Since(now.still) >= stillFor) {
		for n, mod := range was.keys {
			// A key that keeps changing differs in another way each time; what counts
			// is that the change of the earlier audit has not come.
			if again, ok := now.keys[n]; ok && (again == mod || c.behind(n, mod)) {
				c.w.log.WithField("key", n.Text()).Warn("the watch missed a change of this key: reading everything again")
				c.w.note(func(s *Status) { s.Drift++ })
				c.w.Relist(relistDrift)
				return
			}
		}
	}
	c.suspicion = now
	etcd.Signal(c.w.doubt)
	etcd.Signal(c.w.progress) // if the watch has delivered everything, its progress shows it
}

// behind reports whether the table holds a key as it was before revision mod. One
// that it does not hold says nothing: it may have been added and deleted since.
func (c *contact) behind(n schema.Name, mod int64) bool {
	e := c.table.entries[n]
	return e != nil && e.absent == nil && e.mod < mod
}

// differences compares the keys of an audit with the table. What the table has
// from after the audit is no difference.
func (c *contact) differences(a *audited) map[schema.Name]int64 {
	out := map[schema.Name]int64{}
	if a.Schema != c.schema {
		out[schema.Name{Address: schema.KeySchema}] = a.Schema
	}
	there := make(map[schema.Name]bool, len(a.KVs))
	for _, kv := range a.KVs {
		n := c.table.layout.Parse(string(kv.Key))
		if n.Kind == schema.KindOther {
			continue
		}
		there[n] = true
		e := c.table.entries[n]
		switch {
		case e == nil:
			if a.Revision >= c.table.revision { // else it may have been deleted since the audit
				out[n] = kv.ModRevision
			}
		case e.absent != nil:
			if e.absent.lostAt <= a.Revision {
				out[n] = kv.ModRevision
			}
		case e.mod <= a.Revision && !e.sameKey(kv):
			out[n] = kv.ModRevision
		}
	}
	for _, e := range c.table.order {
		if e.absent == nil && e.mod <= a.Revision && !there[e.Name] {
			out[e.Name] = 0
		}
	}
	return out
}
