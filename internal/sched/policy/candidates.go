package policy

import "github.com/pdmesh/pdmesh/internal/instance"

// Candidates are those that one request may have, in the order of their addresses.
type Candidates struct {
	list     []Candidate
	some     []Choice // nil: all of the list
	total    float64  // of the weights
	uneven   bool     // weights differ
	narrowed bool
}

// Choice is one of a list that may be chosen.
type Choice struct {
	at     int
	weight float64
}

// All returns all of a list.
func All(list []Candidate) Candidates {
	c := Candidates{list: list}
	for i := range list {
		c.total += list[i].Weight
		c.uneven = c.uneven || list[i].Weight != list[0].Weight
	}
	return c
}

// Some returns those of a list that are added. narrowed reports whether the request itself
// leaves some out, because it has tried them or they do not fit its partner. room,
// which is not nil, is memory for them; it is used as long as the candidates are.
func Some(list []Candidate, room []Choice, narrowed bool) Candidates {
	return Candidates{list: list, some: room[:0], narrowed: narrowed}
}

// Add adds one of the list, the next by its place. The weight is the candidate's own,
// or a part of it while it should get less.
func (c *Candidates) Add(at int, weight float64) {
	c.some = append(c.some, Choice{at, weight})
	c.total += weight
	c.uneven = c.uneven || weight != c.some[0].weight
}

// Len is how many there are.
func (c *Candidates) Len() int {
	if c.some != nil {
		return len(c.some)
	}
	return len(c.list)
}

// Index returns the place of the i-th in the list that the candidates are of.
func (c *Candidates) Index(i int) int {
	if c.some != nil {
		return c.some[i].at
	}
	return i
}

// At returns the i-th.
func (c *Candidates) At(i int) *Candidate { return &c.list[c.Index(i)] }

// Weight is what the i-th should have now, in proportion to the others: less than
// its candidate's own while it starts slowly.
func (c *Candidates) Weight(i int) float64 {
	if c.some != nil {
		return c.some[i].weight
	}
	return c.list[i].Weight
}

// Load is what the i-th has to do in proportion to its weight: see Load.Legs.
func (c *Candidates) Load(i int) float64 {
	return float64(c.At(i).Load.sum.Load()) / c.Weight(i)
}

// legs is the same for people: in legs, of an instance of the usual weight.
func (c *Candidates) legs(i int) float64 {
	return c.At(i).Load.Legs() * instance.DefaultWeight / c.Weight(i)
}

// Even reports whether all have the same weight.
func (c *Candidates) Even() bool { return !c.uneven }

// Narrowed reports whether the request itself leaves some out. Other requests then
// choose among others: turns that are counted for all of them prefer some.
func (c *Candidates) Narrowed() bool { return c.narrowed }

// Share returns the candidate at a point from 0 up to 1 of all weights laid end to
// end, and the point where its own weight begins.
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

// Part is the part of all weights that the i-th has.
func (c *Candidates) Part(i int) float64 { return c.Weight(i) / c.total }

// The bound on what an instance gets for the sake of a session or a zone: twice what the
// candidates have on average, counted in requests of all proxies, by weight. Nobody with
// few requests is above it, however idle the others are.
const (
	most = 2
	few  = 8
)

// Requests is what the i-th has in flight, by all proxies.
func (c *Candidates) Requests(i int) float64 {
	l := c.At(i).Load
	return float64(l.InFlight.Load()) + l.Others.InFlight.Load()
}

// Limit is what an instance of weight 1 may have in flight to be within the bound. To tell
// it takes a look at all candidates.
func (c *Candidates) Limit() float64 {
	sum, weights := 0.0, 0.0
	for i := range c.Len() {
		sum += c.Requests(i)
		weights += c.At(i).Weight
	}
	return most * sum / weights
}

// Overloaded reports whether so many requests on so many instances, whose weights together are
// as given, are above the bound.
func Overloaded(requests float64, instances int, weights, limit float64) bool {
	return requests > float64(few*instances) && requests > limit*weights
}
