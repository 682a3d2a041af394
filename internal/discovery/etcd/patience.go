package etcd

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Limits of the wait for one answer of etcd. If there is another member, which may answer at once,
// the first wait is short. From the second missing answer in a row the wait doubles, so that a slow
// etcd can answer if it is the only one.
const (
	firstWait        = time.Second
	singleMemberWait = 3 * time.Second // first wait if there is only one member
	LongestWait      = 3 * time.Second
	LongestList      = 10 * time.Second // for all values of a large fleet
	waitPerEntry     = 200 * time.Microsecond
	slowFactor       = 4 // the next wait is this multiple of the last response time
	waitGrowth       = 2
)

// Patience adapts the time limit of one kind of request to etcd. It is not safe for concurrent use.
type Patience struct {
	Longest time.Duration
	// Client is the client whose endpoints are counted; nil for a liveness check, whose first wait
	// is always short.
	Client *clientv3.Client
	wait   time.Duration
	missed bool // the last request timed out
}

// Limit returns the time limit of the next request.
func (p *Patience) Limit() time.Duration {
	if p.Client != nil && len(p.Client.Endpoints()) == 1 { // they may change
		return max(p.wait, singleMemberWait)
	}
	return max(p.wait, firstWait)
}

// LimitFor returns the time limit of a read of entries.
func (p *Patience) LimitFor(entries int) time.Duration {
	return p.Limit() + time.Duration(entries)*waitPerEntry
}

// Learn records how long the last request took, and whether it was answered.
func (p *Patience) Learn(took time.Duration, answered bool) {
	silent := !answered && took >= p.Limit() // an early error is no evidence of a slow etcd
	switch {
	case answered:
		p.wait = min(slowFactor*took, p.Longest)
	case silent && p.missed:
		p.wait = min(waitGrowth*p.Limit(), p.Longest)
	}
	p.missed = silent
}
