package upstream

import (
	"cmp"
	"time"
)

// Patient returns options for tests that count connections, or whose dials must succeed: a busy machine
// may not notice within 300 ms, or a second, that it is connected.
func (o Options) Patient() Options {
	o.ConnectTimeout, o.retryWait = cmp.Or(o.ConnectTimeout, time.Minute), time.Hour
	return o
}

// LastTry returns how long after its begin a dial begins its last try.
func (d *Dialer) LastTry() time.Duration { return (maxTries - 1) * d.wait }

// StaleRetries returns the number of requests that were retried because the engine
// had closed the pooled connection.
func (p *Pool) StaleRetries() int64 { return p.staleRetries.Load() + p.https.StaleRetries() }

// StaleRetries is like that of Pool.
func (c *Std) StaleRetries() int64 { return c.staleRetries.Load() }
