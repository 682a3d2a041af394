package transfer

import (
	"errors"
	"sync"
	"time"
)

// The reasons why a transfer between Mooncake engines fails.
var (
	ErrNoPrefill = errors.New("timeout waiting for the prefill side to be ready")
	errEngineEnd = errors.New("the engine ends")
)

// transfer is the transfer of one prefill's blocks to its decode.
type transfer struct {
	ready   chan struct{} // closed once the prefill has ended by length
	begun   bool          // the prefill has arrived; a decode may arrive first
	pulled  bool          // a decode has arrived
	prompt  uint64        // hash of the prompt's tokens; set before ready is closed
	expires time.Time     // set before ready is closed
}

// offered reports whether the prefill has ended, so that its blocks can be fetched.
func (tr *transfer) offered() bool {
	select {
	case <-tr.ready:
		return true
	default:
		return false
	}
}

// Rendezvous keeps the transfers of one incarnation of a Mooncake or MoRI-IO producer, by
// transfer_id. Either leg may come first.
type Rendezvous struct {
	timeout time.Duration
	done    <-chan struct{} // closed when the incarnation ends
	reused  func(id string) // called for a second decode of an id

	mu      sync.Mutex // guards everything below
	open    map[string]*transfer
	spent   recent[string, bool] // ended ids; true: a decode got the blocks
	expired int64
	pulls   int64 // number of Pull calls
}

// NewRendezvous returns an empty Rendezvous. timeout bounds how long a decode waits for its
// prefill, and how long a prefill's blocks wait for their decode.
func NewRendezvous(timeout time.Duration, done <-chan struct{}, reused func(id string)) *Rendezvous {
	return &Rendezvous{timeout: timeout, done: done, reused: reused, open: make(map[string]*transfer), spent: newRecent[string, bool](1 << 16)}
}

// Begin records that a prefill runs. It returns false if the id was used before.
func (t *Rendezvous) Begin(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, spent := t.spent.m[id]; spent {
		return false
	}
	tr := t.get(id)
	first := !tr.begun
	tr.begun = true
	return first
}

// get returns the transfer of an id, and creates it if necessary; t.mu is held.
func (t *Rendezvous) get(id string) *transfer {
	tr := t.open[id]
	if tr == nil {
		tr = &transfer{ready: make(chan struct{})}
		t.open[id] = tr
	}
	return tr
}

// Finish offers the blocks of a prefill that has ended by length.
func (t *Rendezvous) Finish(id string, prompt uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tr := t.get(id)
	tr.prompt, tr.expires = prompt, now.Add(t.timeout)
	close(tr.ready)
}

// Drop removes a prefill that offers no blocks. As in vLLM, a decode that waits for it is not
// notified.
func (t *Rendezvous) Drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(id, false)
}

// end removes a transfer and records its id as used; t.mu is held.
func (t *Rendezvous) end(id string, taken bool) {
	delete(t.open, id)
	t.spent.put(id, taken || t.spent.m[id])
}

// Pull waits for a prefill and takes its blocks, which succeeds once.
func (t *Rendezvous) Pull(id string) (prompt uint64, err error) {
	t.mu.Lock()
	tr := t.get(id)
	again := t.spent.m[id] && !tr.begun || tr.pulled
	tr.pulled = true
	t.pulls++
	t.mu.Unlock()
	if again {
		t.reused(id)
	}
	timer := time.NewTimer(t.timeout)
	defer timer.Stop()
	select {
	case <-tr.ready:
		if t.take(id, tr, time.Now()) {
			return tr.prompt, nil
		}
		select { // the blocks have expired, which vLLM does not report either
		case <-timer.C:
		case <-t.done:
			return 0, errEngineEnd
		}
	case <-timer.C:
	case <-t.done:
		return 0, errEngineEnd
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[id] == tr && !tr.begun {
		delete(t.open, id)
	}
	return 0, ErrNoPrefill
}

func (t *Rendezvous) take(id string, tr *transfer, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	if t.open[id] != tr {
		return false
	}
	t.end(id, true)
	return true
}

// expire frees the blocks that no decode has fetched; t.mu is held.
func (t *Rendezvous) expire(now time.Time) {
	for id, tr := range t.open {
		if tr.offered() && !now.Before(tr.expires) {
			t.end(id, false)
			t.expired++
		}
	}
}

// Counts returns the number of prefills that wait for their decode, and of those that
// expired.
func (t *Rendezvous) Counts(now time.Time) (waiting, expired int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	for _, tr := range t.open {
		if tr.offered() {
			waiting++
		}
	}
	return waiting, t.expired
}

// Holds reports whether the blocks of an id wait for their decode.
func (t *Rendezvous) Holds(id string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	tr := t.open[id]
	return tr != nil && tr.offered()
}

// Asked returns the number of Pull calls, 0 for nil.
func (t *Rendezvous) Asked() int64 {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pulls
}
