package sched

import (
	"slices"

	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// zoneLabel is the label of a record with the zone of its instance. Instances in one zone are near each
// other.
const zoneLabel = "zone"

// Reasons why a request does not go to the instance of its session, or into the preferred zone; "" for none.
const (
	// sessionOverloaded: the instance of the session has more than twice the average number of requests in
	// flight.
	sessionOverloaded = "session_overloaded"
	// zoneOverloaded: the instances of the zone have more than twice that average.
	zoneOverloaded = "zone_overloaded"
	// zoneNone: no instance of the zone may be picked.
	zoneNone = "zone_none"
)

// elsewhereText returns the preference that a pick did not meet: the preferred zone, or the
// instance of its session.
func elsewhereText(zone string, passed *policy.Candidate) string {
	if passed == nil {
		return zone
	}
	text := sessionOverloaded + "(" + passed.Instance.Address + ")"
	if zone != "" {
		text += "," + zone
	}
	return text
}

// preferredZone returns the zone in which a request should be served: that of this proxy, or, if it has none,
// that of the request's partner; "" for any.
func (f *filter) preferredZone(r *Request) string {
	if f.opts.Zone == "" && r.Partner != nil && r.Partner.Instance != nil {
		return r.Partner.Instance.Record.Labels[zoneLabel]
	}
	return f.opts.Zone
}

// preferZone returns the candidates of a request that are in the preferred zone. If there are none, or if
// they have far more to do than the others, it returns the others. It does nothing while no instance of the
// list has a zone.
func (f *filter) preferZone(list *candidates, among policy.Candidates, r *Request, l *scratch) (_ policy.Candidates, _ *scratch, elsewhere string) {
	if list.zones == 0 || among.Len() == 0 {
		return among, l, ""
	}
	near := f.preferredZone(r)
	if near == "" {
		return among, l, ""
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
		return among, l, ""
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
	return some, l, ""
}
