package upstream

// StaleRetries returns the number of requests that were retried because the engine
// had closed the pooled connection.
func (p *Pool) StaleRetries() int64 { return p.staleRetries.Load() + p.https.StaleRetries() }

// StaleRetries is like that of Pool.
func (c *Std) StaleRetries() int64 { return c.staleRetries.Load() }
