package connector

import (
	"sync"
	"sync/atomic"
)

// Controls are what a test changes of connectors while engines live. The zero value
// changes nothing.
type Controls struct {
	muted atomic.Bool

	mu     sync.Mutex // guards notice
	notice NoticePlan
}

// NoticePlan is what becomes of the notifications of an LMCache prefill. The zero value
// sends each once, before the answer.
type NoticePlan struct {
	After bool // the transfer runs after the HTTP answer
	// Listed is called when a rank's chunks are listed and not written yet.
	Listed func(rank int)
	// Times is how often a rank notifies, where it is not once.
	Times func(rank int) int
}

// SetNotices changes what becomes of the notifications from now on.
func (c *Controls) SetNotices(p NoticePlan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notice = p
}

func (c *Controls) notices() NoticePlan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.notice
}

// Mute stops the pings of MoRI-IO engines, and starts them again.
func (c *Controls) Mute(mute bool) { c.muted.Store(mute) }
