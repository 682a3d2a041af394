package sock

import (
	"runtime"
	"sync/atomic"
)

// Hunch tells whether what a connection waits for next is likely to be there as
// soon as the other goroutines that can run have run. If so, a look after that
// saves the poller and a wake-up; if not, it is a system call in vain, and may wake
// a thread for nothing. It learns from how looks ended: they go on while every
// second one finds something, and otherwise are tried again once in a while. The
// zero value is ready; it belongs to whoever owns the connection.
type Hunch struct {
	// n is how many more vain looks than others it bears, or, below zero, how many
	// waits are still to come without one.
	n int8
}

// looked counts looks since the poller was heard of. Go's scheduler asks the poller
// only when nothing can run, or after 10 ms. Goroutines that let each other run and
// find something all the time would keep everybody waiting for that long whom only
// the poller can wake.
var looked atomic.Int32 //nolint:gochecknoglobals // the scheduler is one for all

// Woken tells that somebody was woken by the poller.
func Woken() {
	if looked.Load() != 0 {
		looked.Store(0)
	}
}

const (
	hunchAll   = 32 // looks of all connections before the poller must be heard of
	hunchTrial = 3
	hunchMost  = 16
	hunchPause = 64
)

// Try lets others run if a look should be taken then, and tells so. After a look
// Found is due.
func (h *Hunch) Try() bool {
	if h.n < 0 {
		h.n++
		return false
	}
	if looked.Load() >= hunchAll {
		return false
	}
	looked.Add(1)
	if h.n == 0 {
		h.n = hunchTrial
	}
	runtime.Gosched()
	return true
}

// Found takes in how a look ended.
func (h *Hunch) Found(something bool) {
	if something {
		h.n = min(h.n+1, hunchMost)
	} else if h.n--; h.n == 0 {
		h.n = -hunchPause
	}
}
