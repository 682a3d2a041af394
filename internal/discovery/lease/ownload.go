package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// LoadSource is what a proxy tells the others of its load. All must be set.
type LoadSource struct {
	// Applied is the mod_revision up to which picks know the membership.
	Applied func() int64
	// InFlight returns what is in flight, and what has just left.
	InFlight func() []schema.LoadEntry
	// Changed is closed when the membership changes.
	Changed func() <-chan struct{}
	// Untold reports whether there are prompts that the others should hear of.
	Untold func() bool
	// Prompts returns these, in at most so many bytes, and forgets them.
	Prompts func(most int) []byte
}

const (
	// RefreshLoad is how old a digest that tells of anything becomes: older ones are
	// those of a proxy that hangs, or has lost etcd.
	RefreshLoad = 3 * time.Second
	// leavingLook is the time between two looks while an instance is leaving.
	leavingLook = 20 * time.Millisecond
	// perSecond is how many bytes of digests a proxy writes in a second at most,
	// on average: each is read by every other proxy.
	perSecond = 16 << 10
)

// loadState is what keepLoad knows between two looks.
type loadState struct {
	last    *schema.Digest // written
	value   string
	under   clientv3.LeaseID
	at      time.Time
	failed  bool
	leaving map[string]bool // those in last that somebody waits for
	applied settled
}

// settled returns revisions when every pick that knew less is counted: a pick takes a
// moment from its look at the membership to its count.
type settled struct {
	now, next int64
	since     time.Time
}

func (s *settled) see(applied int64, at time.Time) int64 {
	if s.next != s.now && at.Sub(s.since) >= leavingLook {
		s.now = s.next
	}
	if s.next == s.now && applied != s.now {
		s.next, s.since = applied, at
	}
	return s.now
}

// keepLoad keeps the digest of this proxy's load until ctx ends. It is written when
// there is much to tell, at most once a LoadInterval; each RefreshLoad when there is
// anything; at once when an instance that leaves has nothing in flight any more; and
// never while nothing happens.
func (p *Presence) keepLoad(ctx context.Context) {
	t := &loadState{leaving: map[string]bool{}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := p.o.Load.Changed()
		wait := p.updateLoad(ctx, t)
		if ctx.Err() != nil {
			return
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if !etcd.Pause(ctx, leavingLook) { // a burst of changes is one
				return
			}
		case <-timer.C:
		}
	}
}

// updateLoad looks at the load once, writes it if it should be, and says when to look again.
func (p *Presence) updateLoad(ctx context.Context, t *loadState) time.Duration {
	now := time.Now()
	applied := t.applied.see(p.o.Load.Applied(), now) // first: it must not promise more
	entries := p.o.Load.InFlight()
	is := schema.NewDigest(applied, entries, now.UTC().Round(time.Millisecond))
	wait, leaves := p.o.LoadInterval, map[string]bool{}
	for _, e := range entries {
		if e.Leaving && e.LoadCount != (schema.LoadCount{}) {
			leaves[e.Key.String()] = true
		}
	}
	left := false
	for key := range t.leaving {
		_, still := is.Load[key]
		left = left || !still
	}
	if len(leaves) > 0 || t.applied.next != t.applied.now {
		wait = min(wait, leavingLook)
	}
	id := p.keeper.state().id
	if id == 0 {
		return wait // the presence gets a lease first
	}
	age, least := now.Sub(t.at), max(p.o.LoadInterval, time.Duration(len(t.value))*time.Second/perSecond)
	due := id != t.under || left ||
		(is.Differs(t.last) || p.o.Load.Untold()) && age >= least ||
		age >= max(min(RefreshLoad, p.o.TTL/3), least) && (len(is.Load) > 0 || !is.Equal(t.last))
	value := t.value
	switch {
	case due:
		is.Prompts = p.o.Load.Prompts(is.PromptBytes())
		raw, err := json.Marshal(is)
		if err != nil {
			p.log.WithField("error", err).Error("the load digest cannot be written")
			return wait
		}
		value = string(raw)
	case age < p.o.TTL:
		return wait // else somebody may have deleted it
	}
	err := p.writeLoad(ctx, value, id)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if !t.failed {
			p.log.WithField("error", err).Warn("cannot tell the other proxies of this one's load; trying on")
		}
		t.failed = true
	case due:
		t.last, t.value, t.under, t.at, t.leaving, t.failed = &is, value, id, now, leaves, false
	default:
		t.at, t.failed = now, false
	}
	return wait
}

func (p *Presence) writeLoad(ctx context.Context, value string, id clientv3.LeaseID) error {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	err := p.put(cctx, p.o.Layout.Load(p.o.ID), value, id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		p.keeper.forget(id)
	}
	if err != nil {
		return fmt.Errorf("write the load digest: %w", err)
	}
	return nil
}
