package dashboard

import (
	"maps"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/figures"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// history has the time series of the page, for this proxy and for every instance. It is
// owned by the goroutine of the Board.
type history struct {
	requests *requests
	rounds   int64 // points so far
	total    totals
	of       map[instance.Key]*line
	// fleet reports whether the newest points are those of all proxies; switched, that the ones
	// before were not and have been cleared since the last event.
	fleet, switched bool
}

// totals are the series of all requests.
type totals struct {
	ends                 [ends]uint64
	alone, tokIn, tokOut uint64
	first, between       counted

	served, refused, failed, decodeOnly ring // a second
	inFlight, input, output             ring // input and output in tokens a second
	first50, first95                    ring // ms
	between50, between95                ring
}

// line has the series of one instance.
type line struct {
	timed          *timed
	first, between ring // median of each point, ms
	was            struct{ first, between counted }
	asked, found   ring // tokens of prompts, and of them in the cache
	hits           sched.Hits
	known          bool     // hits has been read once
	share          *float64 // of all proxies
}

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
	maps.DeleteFunc(h.of, func(k instance.Key, _ *line) bool { return there[k] == nil })
	h.requests.of.Store(&there)
}

// point adds a point to every series: that of this proxy, or of all proxies if fleet is not nil.
func (h *history) point(inFlight int64, hits map[instance.Key]sched.Hits, fleet *figures.Fleet) {
	if is := fleet != nil; is != h.fleet {
		h.fleet, h.switched = is, true
		for _, r := range h.total.lines() {
			r.clear()
		}
		for _, l := range h.of {
			l.first.clear()
			l.between.clear()
		}
	}
	h.own(inFlight, hits)
	if fleet != nil {
		h.ofFleet(fleet)
	}
}

// ofFleet replaces the newest points by the figures of all proxies.
func (h *history) ofFleet(f *figures.Fleet) {
	t, all := &h.total, figures.Series{Name: figures.FirstToken}
	between, inFlight := figures.Series{Name: figures.Between}, f.Sum(figures.InFlight)
	t.served.replace(f.Rate(figures.Requests, "ok"), 1)
	t.refused.replace(f.Rate(figures.Requests, "client_error", "client_gone"), 1)
	t.failed.replace(f.Rate(figures.Requests, "unavailable", "upstream_error", "broken"), 1)
	t.decodeOnly.replace(f.Rate(figures.DecodeOnly, ""), 1)
	t.input.replace(f.Rate(figures.Tokens, "input"), 1)
	t.output.replace(f.Rate(figures.Tokens, "output"), 1)
	t.inFlight.replace(&inFlight, 1)
	t.first50.replace(f.Quantile(.5, all), 1e3)
	t.first95.replace(f.Quantile(.95, all), 1e3)
	t.between50.replace(f.Quantile(.5, between), 1e3)
	t.between95.replace(f.Quantile(.95, between), 1e3)
	for k, l := range h.of {
		l.first.replace(f.Quantile(.5, figures.Of(figures.First, k)), 1e3)
		l.between.replace(f.Quantile(.5, figures.Of(figures.PerToken, k)), 1e3)
		l.share = f.HitRate(k.Address)
	}
}

// own adds a point of this proxy to every series.
func (h *history) own(inFlight int64, hits map[instance.Key]sched.Hits) {
	h.rounds++
	r, t := h.requests, &h.total
	rate := func(is uint64, was *uint64) float32 {
		n := is - *was
		*was = is
		return float32(n) / step
	}
	t.served.add(rate(r.ends[served].Load(), &t.ends[served]))
	t.refused.add(rate(r.ends[refused].Load(), &t.ends[refused]))
	t.failed.add(rate(r.ends[failed].Load(), &t.ends[failed]))
	t.decodeOnly.add(rate(r.alone.Load(), &t.alone))
	t.input.add(rate(r.input.Load(), &t.tokIn))
	t.output.add(rate(r.output.Load(), &t.tokOut))
	t.inFlight.add(float32(inFlight))
	quantiles(&t.first, &r.first, &t.first50, &t.first95)
	quantiles(&t.between, &r.between, &t.between50, &t.between95)
	for k, l := range h.of {
		quantiles(&l.was.first, &l.timed.first, &l.first, nil)
		quantiles(&l.was.between, &l.timed.between, &l.between, nil)
		if is, ok := hits[k]; ok {
			l.hit(is)
		}
	}
}

// hit records the cache counts of an instance. They restart when its counters do.
func (l *line) hit(is sched.Hits) {
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
		"served": &t.served, "refused": &t.refused, "failed": &t.failed, "alone": &t.decodeOnly, "in_flight": &t.inFlight, "input": &t.input, "output": &t.output,
		"first50": &t.first50, "first95": &t.first95, "between50": &t.between50, "between95": &t.between95,
	}
}
