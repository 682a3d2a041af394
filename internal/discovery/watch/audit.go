package watch

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// auditRetry is the pause after a failed audit.
const auditRetry = 200 * time.Millisecond

// audit compares all keys in etcd with the table, on a jittered interval. Only an audit detects a
// watch that is silent without an error, such as one on a wiped store.
func (w *Watcher) audit(ctx context.Context) {
	wait := etcd.Jitter(w.o.AuditInterval)
	failed, early := false, 0
	answers := &etcd.Patience{Client: w.cli, Longest: etcd.LongestWait}
	differs := make(chan bool, 1)
	for sleep.For(ctx, wait) {
		got, err := w.list(ctx, answers, !failed, clientv3.WithKeysOnly())
		failed = err != nil
		if !w.send(ctx, func(o *owner) { differs <- o.audited(&got, err) }) {
			return
		}
		wait = etcd.Jitter(w.o.AuditInterval)
		if <-differs && early < earlyAudits {
			wait = min(wait, doubtPause)
			early++
			continue
		}
		early = 0
		if failed { // list at another member, if there is one: this one may hang, and the watch with it
			wait = min(wait, etcd.Jitter(auditRetry))
		}
	}
}

const (
	// doubtPause is the time from an audit that found a difference to the next. By then a healthy
	// watch has sent a progress notification. After two such pauses, a hung watch has been silent
	// for stallTimeout.
	doubtPause = 1200 * time.Millisecond
	// earlyAudits bounds the early audits in a row: a membership that changes all the time
	// differs at each audit.
	earlyAudits = 2
)

// suspicion holds the differences that an audit found, and the state of the watch at that
// time. One audit proves nothing: the events may still be under way.
type suspicion struct {
	keys     map[schema.Name]int64 // with the mod_revision that etcd has, 0 for none
	revision int64                 // of the audit
	watch    int64                 // revision that the watch had reached
	still    time.Time             // time since which that has not changed
	at       time.Time             // of the audit
}

// minConfirmDelay is the least time between an audit and the one that confirms it. etcd before
// 3.4.25 and 3.5.8 may report that a watch has reached a revision while events up to
// it are still under way (etcd-io/etcd#15220).
const minConfirmDelay = 300 * time.Millisecond

// stallTimeout is the time without any progress after which a watch that differs from the audits
// counts as silent.
const stallTimeout = 2 * time.Second

// audited applies the outcome of an audit, which lists keys only, and reports whether the next one
// must confirm a difference. A difference in two audits in a row is drift if the watch has passed
// the revision of the first, or made no progress. A watch that only lags makes progress.
func (c *contact) audited(a *etcd.Listing, err error) (differs bool) {
	if err != nil {
		c.failures++
		c.doubt = time.Now()
		c.w.note(func(s *Status) { s.AuditErrors++; s.LastError = err.Error() })
		return false
	}
	c.w.note(func(s *Status) { s.Audits++ })
	c.answered(a.Before, a.Revision, a.Cluster, a.Member)
	if !c.listed || !c.following {
		c.suspicion = nil // a list is on its way
		return false
	}
	now := &suspicion{keys: c.differences(a), revision: a.Revision, watch: c.reached, still: time.Now(), at: time.Now()}
	was := c.suspicion
	c.suspicion = nil
	if len(now.keys) == 0 {
		return false
	}
	if was != nil && time.Since(was.at) < minConfirmDelay {
		c.suspicion = was
		if was.watch != now.watch {
			was.still = now.still
		}
		return false
	}
	if was != nil && was.watch == now.watch {
		now.still = was.still
	}
	if was != nil && (now.watch >= was.revision || time.Since(now.still) >= stallTimeout) {
		for n, mod := range was.keys {
			// A key that changes all the time differs at each audit. It is drift only if the change
			// that the earlier audit found was not delivered.
			if again, ok := now.keys[n]; ok && (again == mod || c.isOutdated(n, mod)) {
				c.w.log.WithField("key", n.Text()).Warn("the watch missed a change of this key: reading everything again")
				c.w.note(func(s *Status) { s.Drift++ })
				c.w.Relist(relistDrift)
				return false
			}
		}
	}
	c.suspicion = now
	etcd.Signal(c.w.progress) // if the watch has delivered everything, its progress shows it
	return true
}

// isOutdated reports whether the table holds a key as it was before revision mod. It returns false
// for a key that the table lacks, which may have been added and deleted since.
func (c *contact) isOutdated(n schema.Name, mod int64) bool {
	e := c.table.entries[n]
	return e != nil && e.absent == nil && e.mod < mod
}

// differences compares the keys of an audit with the table. Changes after the audit do not count.
func (c *contact) differences(a *etcd.Listing) map[schema.Name]int64 {
	out := map[schema.Name]int64{}
	if a.Schema != c.schema {
		out[schema.Name{Key: instance.Key{Address: schema.KeySchema}}] = a.Schema
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
