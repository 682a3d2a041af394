package policy

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

// Overloaded tells that so many requests on so many instances, whose weights together are
// as given, are above the bound.
func Overloaded(requests float64, instances int, weights, limit float64) bool {
	return requests > float64(few*instances) && requests > limit*weights
}
