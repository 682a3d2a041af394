package sched

import (
	"slices"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// zoneLabel is the label of a record that names the zone of its instance: instances that
// share one are near.
const zoneLabel = "zone"

// elsewhere is why a request does not go to the instance of its session, or into the
// preferred zone.
type elsewhere uint8

const (
	notElsewhere elsewhere = iota
	// sessionOverloaded: the instance of the session has more than twice as much in
	// flight as instances have on average.
	sessionOverloaded
	// zoneOverloaded: the instances of the zone have.
	zoneOverloaded
	// zoneNone: no instance of the zone may be picked.
	zoneNone
)

func (e elsewhere) String() string {
	return [...]string{"", "session_overloaded", "zone_overloaded", "zone_none"}[e]
}

// elsewhereCounts counts them.
type elsewhereCounts [zoneNone + 1]atomic.Uint64

// counterFor returns the counter of a reason; nil for notElsewhere.
func (c *elsewhereCounts) counterFor(e elsewhere) *atomic.Uint64 {
	if e == notElsewhere {
		return nil
	}
	return &c[e]
}

// elsewhereText returns the preference that a pick did not meet: the preferred zone, or the
// instance of its session.
func elsewhereText(zone elsewhere, passed *policy.Candidate) string {
	if passed == nil {
		return zone.String()
	}
	words := sessionOverloaded.String() + "(" + passed.Instance.Address + ")"
	if zone != notElsewhere {
		words += "," + zone.String()
	}
	return words
}

// preferredZone is the zone in which a request should be served: this proxy's, or, if it has
// none, that of the other instance of the pair; "" for any.
func (f *filter) preferredZone(r *Request) string {
	if f.opts.Zone == "" && r.Partner != nil && r.Partner.Instance != nil {
		return r.Partner.Instance.Record.Labels[zoneLabel]
	}
	return f.opts.Zone
}

// preferZone returns the candidates of a request that are in the preferred zone. If there are
// none, or if they have far more to do than the others, it returns the others. It costs
// nothing while no instance of the list has a zone.
func (f *filter) preferZone(list *candidates, among policy.Candidates, r *Request, l *scratch) (policy.Candidates, *scratch, elsewhere) {
	if list.zones == 0 || among.Len() == 0 {
		return among, l, notElsewhere
	}
	near := f.preferredZone(r)
	if near == "" {
		return among, l, notElsewhere
	}
	n, weights, requests := 0, 0.0, 0.0
	for i := range among.Len() {
		if list.facts[among.Index(i)].zone == near {
			n++
			weights += among.At(i).Weight
			requests += among.Requests(i)
		}
	}
	if n == among.Len() {
		return among, l, notElsewhere
	}
	if n == 0 {
		return among, l, zoneNone
	}
	over := policy.Overloaded(requests, n, weights, 0) && policy.Overloaded(requests, n, weights, among.Limit())
	if l == nil {
		l, _ = f.scratches.Get().(*scratch)
	}
	l.zoneChoices = slices.Grow(l.zoneChoices[:0], among.Len())
	some := policy.Some(list.items, l.zoneChoices, true)
	for i := range among.Len() {
		if at := among.Index(i); (list.facts[at].zone == near) != over {
			some.Add(at, among.Weight(i))
		}
	}
	if over {
		return some, l, zoneOverloaded
	}
	return some, l, notElsewhere
}
