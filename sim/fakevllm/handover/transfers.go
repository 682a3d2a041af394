package handover

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Why a transfer between Mooncake engines comes to nothing.
var (
	ErrNoPrefill = errors.New("timeout waiting for the prefill side to be ready")
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

// Transfers are those of one life of a Mooncake producer, by transfer_id. Either
// leg may come first.
type Transfers struct {
	timeout time.Duration
	done    <-chan struct{} // of the life
	reused  func(id string) // is told of a second decode

	mu      sync.Mutex // guards everything below
	Open    map[string]*transfer
	spent   map[string]struct{} // ids that are over, the newest of them
	order   []string            // of spent, oldest overwritten first
	next    int
	expired int64
	pulls   int64 // decodes that came
}

func NewTransfers(timeout time.Duration, done <-chan struct{}, reused func(id string)) *Transfers {
	return &Transfers{timeout: timeout, done: done, reused: reused, Open: make(map[string]*transfer), spent: make(map[string]struct{})}
}

// Begin notes that a prefill runs. false means that the id is not its own.
func (t *Transfers) Begin(id string) bool {
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
func (t *Transfers) get(id string) *transfer {
	tr := t.Open[id]
	if tr == nil {
		tr = &transfer{ready: make(chan struct{})}
		t.Open[id] = tr
	}
	return tr
}

// Finish offers the blocks of a prefill that has ended by length.
func (t *Transfers) Finish(id string, prompt uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tr := t.get(id)
	tr.prompt, tr.expires = prompt, now.Add(t.timeout)
	close(tr.ready)
}

// Drop forgets a prefill that offers nothing. A decode that waits for it is not
// told, as with vLLM.
func (t *Transfers) Drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(id)
}

// end takes an id out for good; t.mu is held.
func (t *Transfers) end(id string) {
	const remembered = 1 << 16
	delete(t.Open, id)
	t.spent[id] = struct{}{}
	if len(t.order) < remembered {
		t.order = append(t.order, id)
		return
	}
	delete(t.spent, t.order[t.next])
	t.order[t.next] = id
	t.next = (t.next + 1) % remembered
}

// Pull waits for a prefill and takes its blocks, once.
func (t *Transfers) Pull(id string) (prompt uint64, err error) {
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
	if t.Open[id] == tr && !tr.begun {
		delete(t.Open, id)
	}
	return 0, ErrNoPrefill
}

func (t *Transfers) take(id string, tr *transfer, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	if t.Open[id] != tr {
		return false
	}
	t.end(id)
	return true
}

// expire frees the blocks that no decode has fetched; t.mu is held.
func (t *Transfers) expire(now time.Time) {
	for id, tr := range t.Open {
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

// Counts reports how many prefills wait for their decode and how many were never
// fetched.
func (t *Transfers) Counts(now time.Time) (waiting, expired int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	for _, tr := range t.Open {
		select {
		case <-tr.ready:
			waiting++
		default:
		}
	}
	return waiting, t.expired
}

// Holds reports whether the blocks of an id wait for their decode.
func (t *Transfers) Holds(id string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	tr := t.Open[id]
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

// Asked is how many decodes have come for blocks.
func (t *Transfers) Asked() int64 {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pulls
}

// Answer is one question on the side channel of a producer.
func (t *Transfers) Answer(line string) string {
	words := strings.Fields(line)
	if len(words) != 2 || words[0] != "PULL" {
		return "ERR " + ErrSideSyntax.Error()
	}
	id, err := url.QueryUnescape(strings.TrimPrefix(words[1], "="))
	if err != nil {
		return "ERR " + ErrSideSyntax.Error()
	}
	prompt, err := t.Pull(id)
	if err != nil {
		return "ERR " + err.Error()
	}
	return "OK " + strconv.FormatUint(prompt, 16)
}
