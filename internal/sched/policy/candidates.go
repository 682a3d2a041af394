package policy

import "github.com/pdmesh/pdmesh/internal/instance"

// Candidates are the candidates of one request, ordered by address.
type Candidates struct {
	list     []Candidate
	some     []Choice // nil: the whole list
	total    float64  // of the weights
	uneven   bool     // weights differ
	narrowed bool
}

// Choice is a candidate of a list that may be chosen.
type Choice struct {
	at     int
	weight float64
}

// All returns all candidates of a list.
func All(list []Candidate) Candidates {
	c := Candidates{list: list}
	for i := range list {
		c.total += list[i].Weight
		c.uneven = c.uneven || list[i].Weight != list[0].Weight
	}
	return c
}

// Some returns an empty subset of a list, to be filled by Add. narrowed reports whether the request itself
// excludes candidates, because it has tried them or they do not fit its partner. buf, which is not nil, is
// the memory of the subset; it must not be reused while the subset is used.
func Some(list []Candidate, buf []Choice, narrowed bool) Candidates {
	return Candidates{list: list, some: buf[:0], narrowed: narrowed}
}

// Add adds a candidate of the list; indexes must ascend. The weight is that of the candidate, or a part of it
// while the candidate should get fewer requests.
func (c *Candidates) Add(at int, weight float64) {
	c.some = append(c.some, Choice{at, weight})
	c.total += weight
	c.uneven = c.uneven || weight != c.some[0].weight
}

// Len returns the number of candidates.
func (c *Candidates) Len() int {
	if c.some != nil {
		return len(c.some)
	}
	return len(c.list)
}

// Index returns the index of candidate i in the whole list.
func (c *Candidates) Index(i int) int {
	if c.some != nil {
		return c.some[i].at
	}
	return i
}

// At returns candidate i.
func (c *Candidates) At(i int) *Candidate { return &c.list[c.Index(i)] }

// Weight returns the effective weight of candidate i: less than Candidate.Weight during slow start.
func (c *Candidates) Weight(i int) float64 {
	if c.some != nil {
		return c.some[i].weight
	}
	return c.list[i].Weight
}

// Load returns the load of candidate i divided by its weight; see Load.Legs.
func (c *Candidates) Load(i int) float64 {
	return float64(c.At(i).Load.sum.Load()) / c.Weight(i)
}

// legs returns the same load for display: in legs, scaled to the default weight.
func (c *Candidates) legs(i int) float64 {
	return c.At(i).Load.Legs() * instance.DefaultWeight / c.Weight(i)
}

// Even reports whether all candidates have the same weight.
func (c *Candidates) Even() bool { return !c.uneven }

// Narrowed reports whether the request itself excludes some candidates. Other requests then choose
// from other subsets, so turns counted over all requests would prefer some candidates.
func (c *Candidates) Narrowed() bool { return c.narrowed }

// Share returns the candidate at a point in [0, 1) of the cumulative weights, and the point at
// which its weight begins.
func (c *Candidates) Share(point float64) (i int, begins float64) {
	n := c.Len()
	if !c.uneven {
		i = min(int(point*float64(n)), n-1)
		return i, float64(i) / float64(n)
	}
	sum, until := 0.0, point*c.total
	for i = range n - 1 {
		next := sum + c.Weight(i)
		if next > until {
			return i, sum / c.total
		}
		sum = next
	}
	return n - 1, sum / c.total
}

// Part returns the weight of candidate i as a part of all weights.
func (c *Candidates) Part(i int) float64 { return c.Weight(i) / c.total }

// Bounds for sending requests to an instance because of a session or a zone. most bounds its requests in
// flight, of all proxies, relative to the average of the candidates by weight. An instance with at most few
// requests is never overloaded, however idle the others are.
const (
	most = 2
	few  = 8
)

// Requests returns the requests of all proxies that candidate i has in flight.
func (c *Candidates) Requests(i int) float64 {
	l := c.At(i).Load
	return float64(l.InFlight.Load()) + l.Others.InFlight.Load()
}

// Limit returns the number of requests in flight that an instance of weight 1 may have. It reads
// the load of all candidates.
func (c *Candidates) Limit() float64 {
	sum, weights := 0.0, 0.0
	for i := range c.Len() {
		sum += c.Requests(i)
		weights += c.At(i).Weight
	}
	return most * sum / weights
}

// Overloaded reports whether the given number of requests is above the bound for instances with
// the given sum of weights.
func Overloaded(requests float64, instances int, weights, limit float64) bool {
	return requests > float64(few*instances) && requests > limit*weights
}
