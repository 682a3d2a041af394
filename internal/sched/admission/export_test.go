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

// DispatchOne dispatches the next request, whether it fits or not.
func (q *Queues) DispatchOne() {
	m := (*q.models.Load())["m"]
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.order.next(m.opts.Now()); r != nil {
		m.send(r)
	}
}
