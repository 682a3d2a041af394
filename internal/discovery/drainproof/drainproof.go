// Package drainproof determines when all proxies have applied a change, and have nothing in flight
// on the instances that it excludes, from their reports in etcd.
//
// A proxy counts a request before it reads the membership a second time, and publishes the revision
// that its picks use together with its requests in flight. Once its digest for a revision shows an
// instance as idle, it sends no request there unless the change is lifted. So a proof stays valid,
// even after the proxy ends.
package drainproof

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// grace is how long a proxy must be absent to count as vanished. One whose lease was lost with many
// others, as after a pause of etcd, returns sooner.
const grace = 3 * time.Second

// follow is how long after a proxy appears others may appear whose leases ended together with its
// own. Two of the requests that write a presence may be lost.
const follow = 2*etcd.CallTimeout + grace

// Proof has the state of every proxy that was seen since New. It is not safe for concurrent use.
type Proof struct {
	revision int64
	keys     []instance.Key
	m        map[string]*proxy
	begun    bool
	appeared time.Time // when the newest proxy appeared after the first See
}

type proxy struct {
	id, address string
	done        bool
	why         string // reason for not being done; older: waiting longer changes nothing
	away        time.Time
}

// New begins the proof that all proxies have applied a revision, and have nothing in flight on the
// instances of keys.
func New(revision int64, keys []instance.Key) *Proof {
	return &Proof{revision: revision, keys: keys, m: map[string]*proxy{}}
}

// Changed returns the roles and folders whose keys differ between two revisions of the membership.
type Changed func(a, b int64) ([]instance.Role, error)

// older is the reason why a proxy does not prove a revision that wrote documents.
const older = "is of an older release, which may not know the limits or model routes that changed: update it"

// See updates the proof from the current reports. If an intent was written again, it may have been
// lifted in between, so the proxies that are present have to prove it again.
func (p *Proof) See(t store.Reports, now time.Time, changed Changed) {
	again := false
	for _, k := range p.keys {
		if at := t.Intents[k].Revision; at > p.revision {
			p.revision, again = at, true
		}
	}
	loads := map[string]*loaddigest.ProxyLoad{}
	for _, l := range t.Loads {
		loads[l.ID] = l
	}
	there := map[string]bool{}
	for i := range t.Proxies {
		is := &t.Proxies[i]
		there[is.ID] = true
		one := p.m[is.ID]
		if one == nil {
			one = &proxy{id: is.ID}
			p.m[is.ID] = one
			if p.begun {
				p.appeared = now
			}
		}
		one.address, one.away = is.Address, time.Time{}
		if again || !one.done {
			one.why = p.missing(is, loads[is.ID], t.Revision, changed)
			one.done = one.why == ""
		}
	}
	p.begun = true
	for id, one := range p.m {
		if !there[id] && one.away.IsZero() {
			one.away = now
		}
	}
}

// missing returns why a proxy has not proven the change yet, "" if it has. stored is the revision
// of etcd.
func (p *Proof) missing(is *lease.ProxyPresence, l *loaddigest.ProxyLoad, stored int64, changed Changed) string {
	applied := is.Applied
	switch {
	case l != nil && l.Ignored != "":
		return "publishes a load digest that cannot be read: " + l.Ignored
	case l != nil:
		applied = l.Applied // the revision that its picks use
	case len(p.keys) > 0:
		return "publishes no load digest: it has just started, or runs with --load-digests=off"
	}
	if applied > stored { // etcd was wiped, or restored from a backup
		return fmt.Sprintf("follows a former etcd store: it has applied revision %d, and etcd is at %d", applied, stored)
	}
	if applied < p.revision || applied > p.revision && len(is.Documents) < len(schema.Folders()) {
		all, err := changed(min(applied, p.revision-1), p.revision)
		if err != nil {
			return "cannot be compared with etcd: " + err.Error()
		}
		read := slices.DeleteFunc(slices.Clone(all), func(r instance.Role) bool {
			return slices.Contains(schema.Folders(), r) && !slices.Contains(is.Documents, r)
		})
		switch {
		case applied < p.revision && len(read) > 0:
			return fmt.Sprintf("has not applied revision %d yet, it is at %d", p.revision, applied)
		case len(read) < len(all):
			return older
		}
	}
	var holds []string
	for _, k := range p.keys {
		key := k.String()
		if c, ok := l.Load[key]; ok {
			holds = append(holds, fmt.Sprintf("%d on %s", c.InFlight, key))
		}
	}
	switch {
	case len(holds) > 0:
		return "has in flight: " + strings.Join(holds, ", ")
	case len(p.keys) > 0 && l.LeavingLeftOut > 0:
		return "has more in flight on leaving instances than fits into its digest"
	}
	return ""
}

// State is the progress of a proof.
type State struct {
	Done int
	// Waiting is the number of running proxies without a proof. Open describes them, grouped by
	// reason. Vanished are the proxies that ended without a proof. Both lists are sorted.
	Waiting        int
	Older          int // of Waiting: proxies of older releases that will not prove it
	Open, Vanished []string
	// Away is the number of vanished proxies that may return.
	Away int
	// Appeared reports that a proxy has just appeared, so that others may follow.
	Appeared bool
}

// State returns the progress of the proof.
func (p *Proof) State(now time.Time) State {
	s := State{Appeared: now.Sub(p.appeared) < follow}
	var open []*proxy
	inOrder := func(a, b *proxy) int { return cmp.Or(cmp.Compare(a.address, b.address), cmp.Compare(a.id, b.id)) }
	for _, one := range slices.SortedFunc(maps.Values(p.m), inOrder) {
		switch {
		case one.done:
			s.Done++
		case one.away.IsZero():
			open = append(open, one)
			if one.why == older {
				s.Older++
			}
		default:
			s.Vanished = append(s.Vanished, "proxy "+one.name())
			if now.Sub(one.away) < grace {
				s.Away++
			}
		}
	}
	s.Waiting = len(open)
	reasons, by := instance.Reporters(len(open), func(i int) (string, []string) { return open[i].name(), []string{open[i].why} })
	for _, why := range reasons {
		if names := instance.Some(by[why]); len(by[why]) == 1 {
			s.Open = append(s.Open, "proxy "+names+" "+why)
		} else {
			s.Open = append(s.Open, "proxies "+names+": each "+why)
		}
	}
	return s
}

// Over reports whether a longer wait would change nothing.
func (s State) Over() bool { return s.Waiting == s.Older && s.Away == 0 && !s.Appeared }

// name identifies the proxy in messages.
func (p *proxy) name() string {
	if p.address == "" {
		return p.id
	}
	return fmt.Sprintf("%s (%s)", p.address, p.id)
}
