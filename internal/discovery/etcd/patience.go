package etcd

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Limits of the waits for one answer of etcd. Where there is another member,
// which may answer at once, the first wait is short. From the second answer in
// a row that fails to come it doubles, so that an etcd which is slow, and the
// only one, gets its answer in the end.
const (
	firstWait    = time.Second
	aloneWait    = 3 * time.Second // first, for what needs an answer and has one member to ask
	LongestWait  = 3 * time.Second
	LongestList  = 10 * time.Second // of all values of a large fleet
	waitPerEntry = 200 * time.Microsecond
	roomForSlow  = 4 // times what the last answer took are waited for the next
	growthOfWait = 2
)

// Patience is how long the next answer of one kind is waited for. It has one
// user.
type Patience struct {
	Longest time.Duration
	// cli is whose endpoints are counted; nil for a liveness check,
	// for which the first wait is short in any case.
	Client *clientv3.Client
	wait   time.Duration
	missed bool // the last answer did not come
}

// Limit is the deadline for the next question.
func (p *Patience) Limit() time.Duration {
	if p.Client != nil && len(p.Client.Endpoints()) == 1 { // they may change
		return max(p.wait, aloneWait)
	}
	return max(p.wait, firstWait)
}

// LimitFor returns the deadline for a read of n entries.
func (p *Patience) LimitFor(entries int) time.Duration {
	return p.Limit() + time.Duration(entries)*waitPerEntry
}

// Learn takes how long the last question took, and whether it was answered.
func (p *Patience) Learn(took time.Duration, answered bool) {
	silent := !answered && took >= p.Limit() // a refusal says nothing about how long answers take
	switch {
	case answered:
		p.wait = min(roomForSlow*took, p.Longest)
	case silent && p.missed:
		p.wait = min(growthOfWait*p.Limit(), p.Longest)
	}
	p.missed = silent
}
