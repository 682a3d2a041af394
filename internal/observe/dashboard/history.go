package dashboard

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/figures"
)

// history has the time series of the page, for this proxy and for every instance. It is
// owned by the goroutine of the Board.
type history struct {
	own    figures.History // of this proxy, for one step
	rounds int64           // points so far
	total  totals
	of     map[instance.Key]*line
	// fleet reports whether the newest points are those of all proxies; switched, that the ones
	// before were not and have been cleared since the last event.
	fleet, switched bool
}

// totals are the series of all requests.
type totals struct {
	served, refused, failed, decodeOnly ring // a second
	inFlight, input, output             ring // input and output in tokens a second
	first50, first95                    ring // ms
	between50, between95                ring
}

// line has the series of one instance.
type line struct {
	first, between ring // median of each point, ms
	asked, found   ring // tokens of prompts, and of them in the cache
}

func newHistory() *history {
	return &history{own: figures.History{Window: (step - 1) * time.Second}, of: map[instance.Key]*line{}}
}

// keep creates the series of new members of a snapshot and drops those of all others.
func (h *history) keep(s *instance.Snapshot) {
	was := h.of
	h.of = make(map[instance.Key]*line, len(s.All()))
	for _, in := range s.All() {
		if h.of[in.Key] = was[in.Key]; h.of[in.Key] == nil {
			h.of[in.Key] = new(line)
		}
	}
}

// point adds a point to every series: of all proxies if fleet is not nil, else of this proxy, which
// has a number of requests in progress. own is the sample of this proxy, nil if it is unknown.
func (h *history) point(requests int64, own *figures.Sample, fleet *figures.Fleet) {
	samples := map[string]*figures.Sample{}
	if own != nil {
		samples[""] = own
	}
	h.own.Add(samples)
	if is := fleet != nil; is != h.fleet {
		h.fleet, h.switched, h.total = is, true, totals{}
		for _, l := range h.of {
			*l = line{}
		}
	}
	h.rounds++
	f, inFlight := fleet, float64(requests)
	if f != nil {
		inFlight = f.Sum(figures.InFlight)
	} else if f = h.own.Fleet(); f.Seconds == 0 { // of one sample: since the proxy started
		f = &figures.Fleet{}
	}
	t, first, between := &h.total, figures.Series{Name: figures.FirstToken}, figures.Series{Name: figures.Between}
	t.served.figure(f.Rate(figures.Requests, "ok"), 1)
	t.refused.figure(f.Rate(figures.Requests, "client_error", "client_gone"), 1)
	t.failed.figure(f.Rate(figures.Requests, "unavailable", "upstream_error", "broken"), 1)
	t.decodeOnly.figure(f.Rate(figures.DecodeOnly, ""), 1)
	t.input.figure(f.Rate(figures.Tokens, "input"), 1)
	t.output.figure(f.Rate(figures.Tokens, "output"), 1)
	t.inFlight.figure(&inFlight, 1)
	t.first50.figure(f.Quantile(.5, first), 1e3)
	t.first95.figure(f.Quantile(.95, first), 1e3)
	t.between50.figure(f.Quantile(.5, between), 1e3)
	t.between95.figure(f.Quantile(.95, between), 1e3)
	for k, l := range h.of {
		prompts := func(what string) *float64 {
			return f.Counter(figures.Series{Name: figures.Prompts, Instance: k.Address, Label: what})
		}
		l.first.figure(f.Quantile(.5, figures.Of(figures.First, k)), 1e3)
		l.between.figure(f.Quantile(.5, figures.Of(figures.PerToken, k)), 1e3)
		l.asked.figure(prompts("asked"), 1)
		l.found.figure(prompts("found"), 1)
	}
}

// hit returns the share of the prompt tokens of a prefill instance that were in its cache, over
// the kept points; none if there were no prompts.
func (h *history) hit(k instance.Key) value {
	if l := h.of[k]; l != nil && k.Role == instance.Prefill {
		if asked := l.asked.sum(); asked > 0 {
			return value(min(l.found.sum()/asked, 1))
		}
	}
	return value(none)
}

// lines returns the series of all requests by their names on the page.
func (t *totals) lines() map[string]*ring {
	return map[string]*ring{
		"served": &t.served, "refused": &t.refused, "failed": &t.failed, "alone": &t.decodeOnly, "in_flight": &t.inFlight, "input": &t.input, "output": &t.output,
		"first50": &t.first50, "first95": &t.first95, "between50": &t.between50, "between95": &t.between95,
	}
}
