package dashboard

import (
	"math"
	"slices"
	"strconv"
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

const (
	// points is the number of points of a series, and step the seconds between two of them.
	points, step = 60, 5
	// none represents a point without a measurement.
	none value = -1
)

// value is a number of a series; none is encoded as null.
type value float32

// MarshalJSON encodes at least three significant digits, which is more than the page can show.
func (v value) MarshalJSON() ([]byte, error) {
	f := float64(v)
	switch {
	case f < 0 || math.IsNaN(f) || math.IsInf(f, 0):
		return []byte("null"), nil
	case f >= 100:
		return strconv.AppendFloat(nil, f, 'f', 0, 64), nil
	}
	return strconv.AppendFloat(nil, f, 'g', 3, 64), nil
}

// ring has the last points of a series, oldest first.
type ring []value

func (r *ring) add(v value) {
	*r = append((*r)[max(0, len(*r)+1-points):], v)
}

// figure adds v times factor, or none if v is nil.
func (r *ring) figure(v *float64, factor float64) {
	is := none
	if v != nil {
		is = value(*v * factor)
	}
	r.add(is)
}

// line returns the points, or nil if none has a value.
func (r ring) line() []value {
	if !slices.ContainsFunc(r, func(v value) bool { return v >= 0 }) {
		return nil
	}
	return r
}

// last returns the newest point.
func (r ring) last() value {
	if len(r) == 0 {
		return none
	}
	return r[len(r)-1]
}

// sum returns the sum of all points.
func (r ring) sum() (s float64) {
	for _, v := range r {
		s += float64(max(v, 0))
	}
	return s
}
