package admission

import "math"

// Waiting returns the number of waiting requests of all queues.
func (q *Queues) Waiting() (n int64) {
	for _, m := range *q.models.Load() {
		n += m.waiting.Load()
	}
	return n
}

// Tick does the periodic work of Run.
func (q *Queues) Tick() {
	for _, m := range *q.models.Load() {
		m.tick()
	}
}

// Miss returns the share of prompt tokens that are not cached; 0 if unknown.
func (q *Queues) Miss(model string) float64 {
	return math.Float64frombits((*q.models.Load())[model].miss.Load())
}
