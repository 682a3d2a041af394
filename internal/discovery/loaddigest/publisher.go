package loaddigest

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
)

// Source provides the load that a proxy publishes. All fields but Keys and Queue must be set.
type Source struct {
	// Applied returns the mod_revision of the membership that new picks use.
	Applied func() int64
	// InFlight returns the load of each instance, and of those that have just left.
	InFlight func() []schema.LoadEntry
	// Changed returns a channel that is closed when the membership changes.
	Changed func() <-chan struct{}
	// HasPrompts reports whether there are prompts that were not published yet.
	HasPrompts func() bool
	// TakePrompts returns at most limit bytes of these prompts, and forgets all of them.
	TakePrompts func(limit int) []byte
	// Keys returns the demand of API keys, see schema.Digest; nil: none is published.
	Keys func() map[string][]int64
	// Queue returns the state of the queue; nil: there is none.
	Queue func() []schema.QueueEntry
}

// PublishOptions are the options of Publish. All fields must be set.
type PublishOptions struct {
	Source   *Source
	Interval time.Duration // shortest time between two digests
	TTL      time.Duration // of the lease; an unchanged digest is checked once per TTL
	// Lease returns the lease for the digest; 0 while there is none.
	Lease func() clientv3.LeaseID
	// Write writes a digest under a lease.
	Write func(ctx context.Context, value string, id clientv3.LeaseID) error
	Log   logrus.FieldLogger
}

const (
	// Refresh is the longest time between two digests of a proxy that has requests in flight.
	Refresh = 3 * time.Second
	// leavingPoll is the time between two polls of the load while an instance is leaving.
	leavingPoll = 20 * time.Millisecond
	// bytesPerSecond bounds the average rate at which a proxy writes digests, because every
	// other proxy reads them.
	bytesPerSecond = 16 << 10
)

// publisher is the state of one call of Publish.
type publisher struct {
	PublishOptions

	last    *schema.Digest // the one in etcd
	value   string         // of last
	lease   clientv3.LeaseID
	at      time.Time       // when it was written or checked
	failed  bool            // whether the last write failed
	prompts []byte          // taken for a digest that is not written yet
	leaving map[string]bool // instances in last whose drain waits for this proxy
	applied appliedRevision
}

// appliedRevision delays a revision until every pick from an earlier membership is counted: a pick
// reads the membership a moment before it is counted.
type appliedRevision struct {
	now, next int64
	since     time.Time
}

func (r *appliedRevision) update(applied int64, at time.Time) int64 {
	if r.next != r.now && at.Sub(r.since) >= leavingPoll {
		r.now = r.next
	}
	if r.next == r.now && applied != r.now {
		r.next, r.since = applied, at
	}
	return r.now
}

// Publish keeps the digest of a proxy up to date in etcd until ctx ends. It writes the digest
//   - at once when an instance that is leaving has nothing in flight any more,
//   - at most once per Interval when the load has changed much,
//   - every Refresh while anything is in flight,
//
// and never while nothing happens.
func Publish(ctx context.Context, o PublishOptions) {
	p := &publisher{PublishOptions: o, leaving: map[string]bool{}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := o.Source.Changed()
		wait := p.update(ctx)
		if ctx.Err() != nil {
			return
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if !sleep.For(ctx, leavingPoll) { // coalesces a burst of changes
				return
			}
		case <-timer.C:
		}
	}
}

// update polls the load once, writes the digest if it is due, and returns the time until the
// next poll.
func (p *publisher) update(ctx context.Context) time.Duration {
	now := time.Now()
	applied := p.applied.update(p.Source.Applied(), now) // before InFlight, which must not be older
	entries := p.Source.InFlight()
	next := schema.NewDigest(applied, entries, now.UTC().Round(time.Millisecond))
	if p.Source.Keys != nil {
		next.SetKeys(p.Source.Keys())
	}
	if p.Source.Queue != nil {
		next.SetQueue(p.Source.Queue())
	}
	wait, leaving := p.Interval, map[string]bool{}
	for _, e := range entries {
		if e.Leaving && e.LoadCount != (schema.LoadCount{}) {
			leaving[e.Key.String()] = true
		}
	}
	drained := false
	for key := range p.leaving {
		_, still := next.Load[key]
		drained = drained || !still
	}
	if len(leaving) > 0 || p.applied.next != p.applied.now {
		wait = min(wait, leavingPoll)
	}
	id := p.Lease()
	if id == 0 {
		return wait
	}
	age, least := now.Sub(p.at), max(p.Interval, time.Duration(len(p.value))*time.Second/bytesPerSecond)
	// Readers take an old digest with load or a backlog as a sign that etcd is unreachable.
	busy := len(next.Load) > 0 || slices.ContainsFunc(next.Queue, func(e schema.QueueEntry) bool { return e.Backlog > 0 })
	due := id != p.lease || drained ||
		(next.Differs(p.last) || len(p.prompts) > 0 || p.Source.HasPrompts()) && age >= least ||
		age >= max(min(Refresh, p.TTL/3), least) && (busy || !next.Equal(p.last))
	value := p.value
	switch {
	case due:
		if limit := next.PromptBytes(); len(p.prompts) == 0 || len(p.prompts) > limit {
			p.prompts = p.Source.TakePrompts(limit)
		}
		next.Prompts = p.prompts
		raw, _ := json.Marshal(next) // cannot fail: numbers and strings
		value = string(raw)
	case age < p.TTL:
		return wait // after a TTL it is written again, in case the key was deleted
	}
	err := p.Write(ctx, value, id)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if !p.failed {
			p.Log.WithField("error", err).Warn("cannot publish the load digest, retrying")
		}
		p.failed = true
		wait = p.Interval
	case due:
		p.last, p.value, p.lease, p.at, p.leaving, p.failed, p.prompts = &next, value, id, now, leaving, false, nil
	default:
		p.at, p.failed = now, false
	}
	return wait
}
