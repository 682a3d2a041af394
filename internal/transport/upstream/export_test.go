package upstream

import (
	"cmp"
	"time"
)

// Patient returns options for tests that count connections, or whose dials must succeed. A
// busy machine may notice an established connection only after 300 ms, or a second.
func (o Options) Patient() Options {
	o.ConnectTimeout, o.retryWait = cmp.Or(o.ConnectTimeout, time.Minute), time.Hour
	return o
}

// LastTry returns the time from the start of a dial to its last attempt.
func (d *Dialer) LastTry() time.Duration { return (maxTries - 1) * d.wait }

// StaleRetries returns the number of requests that were retried because the engine
// had closed the pooled connection.
func (p *Pool) StaleRetries() int64 { return p.staleRetries.Load() + p.https.StaleRetries() }

// StaleRetries returns the number of requests retried on a new connection, as for Pool.
func (c *Std) StaleRetries() int64 { return c.staleRetries.Load() }
