package fakevllm

import (
	"errors"
	"sync"
	"time"
)

// Why a transfer between Mooncake engines comes to nothing.
var (
	errNoPrefill = errors.New("timeout waiting for the prefill side to be ready")
	errEngineEnd = errors.New("the engine ends")
)

// transfer is one prefill on its way to its decode.
type transfer struct {
	ready   chan struct{} // closed once the prefill has ended by length
	begun   bool          // the prefill has come; a decode may be there before it
	pulled  bool          // a decode has come
	prompt  uint64        // hash of the prompt's tokens; with ready closed
	expires time.Time     // with ready closed
}

// transfers are those of one life of a Mooncake producer, by transfer_id. Either
// leg may come first.
type transfers struct {
	timeout time.Duration
	done    <-chan struct{} // of the life
	reused  func(id string) // is told of a second decode

	mu      sync.Mutex // guards everything below
	open    map[string]*transfer
	spent   map[string]struct{} // ids that are over, the newest of them
	order   []string            // of spent, oldest overwritten first
	next    int
	expired int64
	pulls   int64 // decodes that came
}

func newTransfers(timeout time.Duration, done <-chan struct{}, reused func(id string)) *transfers {
	return &transfers{timeout: timeout, done: done, reused: reused, open: make(map[string]*transfer), spent: make(map[string]struct{})}
}

// begin notes that a prefill runs. false means that the id is not its own.
func (t *transfers) begin(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, spent := t.spent[id]; spent {
		return false
	}
	tr := t.get(id)
	first := !tr.begun
	tr.begun = true
	return first
}

// get finds or makes an entry; t.mu is held.
func (t *transfers) get(id string) *transfer {
	tr := t.open[id]
	if tr == nil {
		tr = &transfer{ready: make(chan struct{})}
		t.open[id] = tr
	}
	return tr
}

// finish offers the blocks of a prefill that has ended by length.
func (t *transfers) finish(id string, prompt uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tr := t.get(id)
	tr.prompt, tr.expires = prompt, now.Add(t.timeout)
	close(tr.ready)
}

// drop forgets a prefill that offers nothing. A decode that waits for it is not
// told, as with vLLM.
func (t *transfers) drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(id)
}

// end takes an id out for good; t.mu is held.
func (t *transfers) end(id string) {
	const remembered = 1 << 16
	delete(t.open, id)
	t.spent[id] = struct{}{}
	if len(t.order) < remembered {
		t.order = append(t.order, id)
		return
	}
	delete(t.spent, t.order[t.next])
	t.order[t.next] = id
	t.next = (t.next + 1) % remembered
}

// pull waits for a prefill and takes its blocks, once.
func (t *transfers) pull(id string) (prompt uint64, err error) {
	t.mu.Lock()
	tr := t.get(id)
	_, again := t.spent[id]
	again, tr.pulled = again && !tr.begun || tr.pulled, true
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
		select { // it has expired, which vLLM does not tell either
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
	return 0, errNoPrefill
}

func (t *transfers) take(id string, tr *transfer, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	if t.open[id] != tr {
		return false
	}
	t.end(id)
	return true
}

// expire frees the blocks that no decode has fetched; t.mu is held.
func (t *transfers) expire(now time.Time) {
	for id, tr := range t.open {
		select {
		case <-tr.ready:
			if !now.Before(tr.expires) {
				t.end(id)
				t.expired++
			}
		default:
		}
	}
}

// counts tells how many prefills wait for their decode and how many were never
// fetched.
func (t *transfers) counts(now time.Time) (waiting, expired int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	for _, tr := range t.open {
		select {
		case <-tr.ready:
			waiting++
		default:
		}
	}
	return waiting, t.expired
}

// holds tells that the blocks of an id wait for their decode.
func (t *transfers) holds(id string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	tr := t.open[id]
	if tr == nil {
		return false
	}
	select {
	case <-tr.ready:
		return true
	default:
		return false
	}
}

// asked is how many decodes have come for blocks.
func (t *transfers) asked() int64 {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pulls
}
