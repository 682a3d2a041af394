package watch

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// contact records whether etcd answers, and whether it is the same store as before. Only the
// goroutine of the owner uses it.
type contact struct {
	w     *Watcher
	table *table

	cluster   uint64
	member    uint64     // of etcd that serves the watch
	schema    int64      // create_revision of the schema key, 0 while none is known
	reached   int64      // revision up to which the watch has delivered everything, as far as is known
	suspicion *suspicion // of the last audit
	restored  bool       // something is known from the disk
	local     bool       // instances of Options.Local are in use
	listed    bool       // a list was applied
	following bool       // the watch has been created
	failures  int        // checks failed in a row
	listFails int        // lists failed in a row
	doubt     time.Time  // last time that etcd did not answer or this process was suspended
}

// noteRevision records a revision that the store has reached.
func (c *contact) noteRevision(revision int64) { c.w.seen.Store(max(c.w.seen.Load(), revision)) }

// noteContact records an answer from etcd.
func (c *contact) noteContact() {
	c.w.note(func(s *Status) { s.LastContact = time.Now(); s.LastError = "" })
}

// watchCreated notes that the watch was created, and which member of etcd serves it.
func (c *contact) watchCreated(member uint64) {
	c.following, c.member = true, member
	c.noteContact()
}

// watchEnded notes that the watch ended.
func (c *contact) watchEnded(reason string, err error) {
	c.following = false
	c.w.note(func(s *Status) { s.WatchEnds[reason]++; s.LastError = err.Error() })
}

// checked applies the outcome of a check. before is the last revision known when it was sent.
func (c *contact) checked(before int64, resp *clientv3.GetResponse, err error) {
	if err != nil {
		c.failures++
		c.doubt = time.Now()
		c.w.note(func(s *Status) { s.CheckErrors++; s.LastError = err.Error() })
		return
	}
	c.w.note(func(s *Status) { s.Checks++ })
	c.answered(before, resp.Header.Revision, resp.Header.ClusterId, resp.Header.MemberId)
}

// answered processes the common part of every answer: that etcd responds, and whether it is
// the same store. before is the last revision known when the request was sent.
func (c *contact) answered(before, revision int64, cluster, member uint64) {
	wasAway, moved := c.failures >= suspectAfter, c.failures > 0 && member != c.member
	c.failures = 0
	c.noteContact()
	switch {
	case !c.listed || !c.following:
		// A list is on its way already.
	case revision < before || cluster != c.cluster:
		c.w.Relist(relistEpoch)
		return
	case wasAway:
		// The watch resumes by itself, but does not show whether this is still the same
		// store: a watch on a wiped store is silent, and one list uses little CPU.
		c.w.Relist(relistRegained)
	case moved:
		// The member that the watch uses did not answer the last check. If the watch hung
		// as well, it would report no error.
		c.w.Relist(relistMoved)
	}
	if c.listed && cluster == c.cluster && revision >= before {
		c.noteRevision(revision)
	}
}

// silence counts the requests to etcd in a row that got no answer.
func (c *contact) silence() int { return max(c.failures, c.listFails) }

// readable reports whether there is a membership to publish.
func (c *contact) readable() bool { return c.listed || c.restored || c.local }

// state updates Status.State, and logs when contact is lost or regained.
func (c *contact) state() {
	now := Live
	switch {
	case !c.readable():
		now = Cold
	case c.silence() >= staleAfter:
		now = Stale
	case c.silence() >= suspectAfter:
		now = Suspect
	case !c.listed || !c.following:
		now = Listing
	}
	var was State
	var why string
	c.w.note(func(s *Status) { was, why, s.State = s.State, s.LastError, now })
	switch {
	case was == now:
	case now == Stale:
		c.w.log.WithField("error", why).Warn("lost contact with etcd: serving the last known membership")
	case was == Stale && now != Suspect:
		c.w.log.WithField("revision", c.table.revision).Info("etcd answers again")
	}
}

// A list may continue the history that the watch has followed, or be of another store: one that
// was wiped, restored from an older copy, or is a different cluster. A wiped store may have
// passed the old revision, with the same cluster id and the same member, so the revision does
// not decide; the keys do.

// otherStore returns why a list does not continue the known history; "" if it does.
func (c *contact) otherStore(l *etcd.Listing) string {
	t := c.table
	switch {
	case !c.listed && !c.restored:
		return "" // nothing is known yet
	case l.Cluster != c.cluster:
		return fmt.Sprintf("another cluster answers (%x, it was %x)", l.Cluster, c.cluster)
	case l.Revision < max(l.Before, t.revision):
		return fmt.Sprintf("the revision went back to %d from %d", l.Revision, max(l.Before, t.revision))
	case c.schema != 0 && l.Schema != c.schema:
		return "the schema key was created again"
	}
	// The table was complete up to its revision, so it must have all older keys, except those that
	// the disk does not hold.
	for _, kv := range l.KVs {
		if kv.ModRevision > t.revision {
			continue
		}
		n := t.layout.Parse(string(kv.Key))
		if n.Kind == schema.KindOther {
			continue
		}
		e := t.entries[n]
		if e == nil && !c.listed && !decodeEntry(n, kv, nil).saved() {
			continue
		}
		if e == nil || !e.same(kv) {
			return fmt.Sprintf("key %s has revisions that this proxy never observed", instance.Printable(string(kv.Key), 300))
		}
	}
	// Without a schema key there is no proof that it is the same store, so a
	// list without most of the static instances does not count as their removal.
	if c.schema == 0 {
		missing := c.missing(l)
		for _, role := range instance.Roles() {
			if missing[group{role, true}].massLoss() {
				return "most static instances are missing, and nothing proves that it is the same store"
			}
		}
	}
	return ""
}

// group is the static or the leased instances of a role.
type group struct {
	role   instance.Role
	static bool
}

// missing counts the good records that are known, by whether a list has them.
func (c *contact) missing(l *etcd.Listing) map[group]census {
	there := make(map[schema.Name]bool, len(l.KVs))
	for _, kv := range l.KVs {
		there[c.table.layout.Parse(string(kv.Key))] = true
	}
	out := make(map[group]census, 4)
	for _, e := range c.table.order {
		if e.Kind != schema.KindInstance || !e.good || (e.absent != nil && e.absent.kind != loaded) {
			continue
		}
		g := group{e.Role, e.leased == 0}
		n := out[g]
		if there[e.Name] {
			n.present++
		} else {
			n.absent++
		}
		out[g] = n
	}
	return out
}

// live reports whether the membership is being followed; otherwise no answer of etcd drops an
// entry. After a suspension of this process it returns false until a list was applied.
func (c *contact) live() bool {
	return c.listed && c.following && c.silence() < suspectAfter && c.w.suspension.gate.Load() == nil
}

// doubtful reports whether leases may have ended a moment ago although their agents run: this
// process did not run, or etcd did not answer. After a stall of the whole machine the watch
// delivers the ends of leases with a delay.
func (c *contact) doubtful() bool {
	now := time.Now()
	c.w.suspension.noticeGap(now)
	return c.w.suspension.gate.Load() != nil || c.silence() > 0 || !c.doubt.IsZero() && now.Sub(c.doubt) < schema.DefaultTTL
}

const (
	// suspectAfter and staleAfter are the numbers of failed requests in a row after which
	// the membership is Suspect and Stale.
	suspectAfter = 2
	staleAfter   = 5
	// checkRetry is the pause after a failed check. It is short, so that a loss of contact
	// and its end are detected soon.
	checkRetry = 500 * time.Millisecond
	// diagnoseEvery is the number of failed checks from one search for the cause to the next.
	diagnoseEvery = 10
)

// check polls etcd on a jittered interval. A watch without traffic is silent when etcd is
// unreachable, and silent for ever when etcd came back with an older store; a linearizable read
// detects both. It counts keys only, which uses 0.2 ms of etcd's CPU at a thousand instances.
func (w *Watcher) check(ctx context.Context) {
	wait := etcd.Jitter(w.o.CheckInterval)
	failures := 0
	answers := &etcd.Patience{Longest: etcd.LongestWait}
	for sleep.For(ctx, wait) {
		// Read before the request is sent: the answer cannot be older than that.
		before, start := w.seen.Load(), time.Now()
		cctx, cancel := context.WithTimeout(ctx, answers.Limit())
		resp, err := w.cli.Get(cctx, w.o.Layout.WatchStart(), clientv3.WithRange(w.o.Layout.WatchEnd()), clientv3.WithCountOnly())
		cancel()
		answers.Learn(time.Since(start), err == nil)
		wait = etcd.Jitter(w.o.CheckInterval)
		if err != nil {
			err = etcd.Explain(ctx, w.cli, "check", err, failures%diagnoseEvery == 0)
			wait = min(wait, etcd.Jitter(checkRetry))
		}
		if failures++; err == nil {
			failures = 0
		}
		if !w.send(ctx, func(o *owner) { o.checked(before, resp, err) }) {
			return
		}
	}
}
