package dashboard

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/figures"
)

// history has the time series of the page, for this proxy and for every instance. It is
// owned by the goroutine of the Board.
type history struct {
	own    figures.History  // of this proxy, for one step
	rounds int64            // points so far
	total  map[string]*ring // of all requests, by their names on the page
	of     map[instance.Key]*line
	// fleet reports whether the points are those of all proxies, switched whether fleet has changed, and
	// the earlier points were cleared, since the last event.
	fleet, switched bool
}

// line has the series of one instance.
type line struct {
	first, between ring // median of each point, ms
	asked, found   ring // tokens of prompts, and of them in the cache
}

func newHistory() *history {
	return &history{own: figures.History{Window: (step - 1) * time.Second}, total: map[string]*ring{}, of: map[instance.Key]*line{}}
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

// point adds a point to every series: of all proxies if fleet is not nil, otherwise of this proxy, which
// has that number of requests in progress. own is the sample of this proxy, nil if it is unknown.
func (h *history) point(requests int64, own *figures.Sample, fleet *figures.Fleet) {
	samples := map[string]*figures.Sample{}
	if own != nil {
		samples[""] = own
	}
	h.own.Add(samples)
	if is := fleet != nil; is != h.fleet {
		h.fleet, h.switched, h.total = is, true, map[string]*ring{}
		for _, l := range h.of {
			*l = line{}
		}
	}
	h.rounds++
	f, inFlight := fleet, float64(requests)
	if f != nil {
		inFlight = f.Sum(figures.InFlight)
	} else if f = h.own.Fleet(); f.Seconds == 0 { // from a single sample, it would be since the proxy started
		f = &figures.Fleet{}
	}
	total := func(name string, v *float64, factor float64) {
		if h.total[name] == nil {
			h.total[name] = new(ring)
		}
		h.total[name].figure(v, factor)
	}
	total("served", f.Rate(figures.Requests, "ok"), 1)
	total("refused", f.Rate(figures.Requests, "client_error", "client_gone"), 1)
	total("failed", f.Rate(figures.Requests, "unavailable", "upstream_error", "broken"), 1)
	total("alone", f.Rate(figures.DecodeOnly, ""), 1)
	total("input", f.Rate(figures.Tokens, "input"), 1) // tokens a second
	total("output", f.Rate(figures.Tokens, "output"), 1)
	total("in_flight", &inFlight, 1)
	first, between := figures.Series{Name: figures.FirstToken}, figures.Series{Name: figures.Between}
	total("first50", f.Quantile(.5, first), 1e3)
	total("first95", f.Quantile(.95, first), 1e3)
	total("between50", f.Quantile(.5, between), 1e3)
	total("between95", f.Quantile(.95, between), 1e3)
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
	return none
}
