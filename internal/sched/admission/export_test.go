package admission

// Waiting returns the number of waiting requests of all queues.
func (q *Queues) Waiting() (n int64) {
	for _, m := range *q.models.Load() {
		n += m.waiting.Load()
	}
	return n
}

// Tick does what Run does regularly.
func (q *Queues) Tick() {
	for _, m := range *q.models.Load() {
		m.tick()
	}
}
