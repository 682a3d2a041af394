package dashboard

import (
	"github.com/pdmesh/pdmesh/internal/instance"
)

// history has the time series of the page, for this proxy and for every instance. It is
// owned by the goroutine of the Board.
type history struct {
	requests *requests
	rounds   int64 // points so far
	total    totals
	of       map[instance.Key]*line
}

// totals are the series of all requests.
type totals struct {
	ends                  [ends]uint64
	alone                 uint64
	first, between, whole counted

	served, refused, failed, decodeOnly ring // a second
	inFlight                            ring
	first50, first95                    ring // ms
	between50, between95                ring
	whole50, whole95                    ring
}

// line has the series of one instance.
type line struct {
	timed          *timed
	first, between ring // median of each point, ms
	was            struct{ first, between counted }
	asked, found   ring // tokens of prompts, and of them in the cache
	hits           Hits
	known          bool // hits has been read once
}

// Hits is the number of tokens that prefill found in an instance's cache since its start.
type Hits struct{ Asked, Found int64 }

func newHistory(r *requests) *history {
	h := &history{requests: r, of: map[instance.Key]*line{}}
	r.of.Store(&map[instance.Key]*timed{})
	return h
}

// keep creates the series of new members of a snapshot and drops those of all others.
func (h *history) keep(s *instance.Snapshot) {
	there := make(map[instance.Key]*timed, len(s.All()))
	for _, in := range s.All() {
		l := h.of[in.Key]
		if l == nil {
			l = &line{timed: new(timed)}
			h.of[in.Key] = l
		}
		there[in.Key] = l.timed
	}
	for k := range h.of {
		if there[k] == nil {
			delete(h.of, k)
		}
	}
	h.requests.of.Store(&there)
}

// point adds a point to every series.
func (h *history) point(inFlight int64, hits map[instance.Key]Hits) {
	h.rounds++
	r, t := h.requests, &h.total
	rate := func(is uint64, was *uint64) float32 {
		n := is - *was
		*was = is
		return float32(n) / step
	}
	t.served.add(rate(r.ends[Served].Load(), &t.ends[Served]))
	t.refused.add(rate(r.ends[Refused].Load(), &t.ends[Refused]))
	t.failed.add(rate(r.ends[Failed].Load(), &t.ends[Failed]))
	t.decodeOnly.add(rate(r.alone.Load(), &t.alone))
	t.inFlight.add(float32(inFlight))
	quantiles(&t.first, &r.first, &t.first50, &t.first95)
	quantiles(&t.between, &r.between, &t.between50, &t.between95)
	quantiles(&t.whole, &r.total, &t.whole50, &t.whole95)
	for k, l := range h.of {
		quantiles(&l.was.first, &l.timed.first, &l.first, nil)
		quantiles(&l.was.between, &l.timed.between, &l.between, nil)
		if is, ok := hits[k]; ok {
			l.hit(is)
		}
	}
}

// hit records the cache counts of an instance. They restart when its counters do.
func (l *line) hit(is Hits) {
	if l.known && is.Asked >= l.hits.Asked {
		l.asked.add(float32(is.Asked - l.hits.Asked))
		l.found.add(float32(is.Found - l.hits.Found))
	}
	l.hits, l.known = is, true
}

// ratio returns the share of prompt tokens that prefill found in its cache, over the kept
// points; none if there were no prompts.
func (l *line) ratio() value {
	if asked := l.asked.sum(); asked > 0 {
		return value(min(l.found.sum()/asked, 1))
	}
	return value(none)
}

func quantiles(was *counted, is *latency, median, high *ring) {
	c, n := was.since(is)
	median.add(c.quantile(.5, n))
	if high != nil {
		high.add(c.quantile(.95, n))
	}
}

// lines returns the series of all requests by their names on the page.
func (t *totals) lines() map[string]*ring {
	return map[string]*ring{
		"served": &t.served, "refused": &t.refused, "failed": &t.failed, "alone": &t.decodeOnly, "in_flight": &t.inFlight,
		"first50": &t.first50, "first95": &t.first95, "between50": &t.between50, "between95": &t.between95,
		"whole50": &t.whole50, "whole95": &t.whole95,
	}
}
