package fakevllm

import (
	"errors"
	"sync"
	"time"
)

// Why an engine refuses to give a hand-over away.
var (
	errForeign  = errors.New("the engine id is not of this incarnation")
	errUnknown  = errors.New("no such hand-over")
	errFreed    = errors.New("the hand-over was freed, as a decode engine refused its request")
	errUsed     = errors.New("the hand-over was used already")
	errExpired  = errors.New("the lease of the hand-over has ended")
	errPrompt   = errors.New("the hand-over is of another prompt")
	errRequest  = errors.New("the hand-over is of another request id")
	errVersion  = errors.New("the handshake failed: the engines are of different versions")
	errTampered = errors.New("the hand-over's fields came back changed")
)

// handover is one finished prefill that waits for its decode.
type handover struct {
	prompt  uint64 // hash of the prompt's tokens
	base    string // X-Request-Id of the prefill, "" when it had none
	token   string // the integer above 2^53 that must come back digit by digit, "" if it need not
	expires time.Time
	free    func() // gives the blocks back
}

// claim is what a decode shows to get a hand-over.
type claim struct {
	engineID, requestID, base, token string
	version                          string // of an engine that minds, "" for all others
	prompt                           uint64
}

// ledger keeps one incarnation's hand-overs.
type ledger struct {
	engineID string
	anyone   bool   // whoever asks may name any engine, as over P2P
	bound    bool   // the request must be the one of the prefill, as with push
	version  string // "" of an engine that does not mind
	lease    time.Duration

	mu      sync.Mutex // guards everything below
	waiting map[string]handover
	gone    map[string]error // used or expired ids, so that a refusal says why
	order   []string         // of gone, oldest overwritten first
	next    int
	expired int64
	swept   time.Time
}

// newLedger makes an empty one, whose hand-overs live for the lease.
func newLedger(engineID, version string, lease time.Duration, anyone, bound bool) *ledger {
	return &ledger{engineID: engineID, anyone: anyone, bound: bound, version: version, lease: lease, waiting: make(map[string]handover), gone: make(map[string]error)}
}

func (l *ledger) put(requestID string, h handover, now time.Time) {
	h.expires = now.Add(l.lease)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	l.waiting[requestID] = h
}

// take gives a hand-over away, once.
func (l *ledger) take(c claim, now time.Time) error {
	switch {
	case !l.anyone && c.engineID != l.engineID:
		return errForeign
	case l.version != "" && c.version != "" && l.version != c.version:
		return errVersion
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h, ok := l.waiting[c.requestID]
	if !ok {
		if why, ok := l.gone[c.requestID]; ok {
			return why
		}
		return errUnknown
	}
	if !now.Before(h.expires) {
		l.drop(c.requestID, errExpired)
		l.expired++
		return errExpired
	}
	switch {
	case h.prompt != c.prompt:
		return errPrompt
	case (h.base != "" || l.bound) && h.base != c.base:
		return errRequest
	case h.token != "" && h.token != c.token:
		return errTampered
	}
	l.drop(c.requestID, errUsed)
	return nil
}

// free gives a hand-over up that nobody will read.
func (l *ledger) free(engineID, requestID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.waiting[requestID]; ok && engineID == l.engineID {
		l.drop(requestID, errFreed)
	}
}

// drop forgets a hand-over but remembers why; l.mu is held.
func (l *ledger) drop(requestID string, why error) {
	const remembered = 4096
	if h := l.waiting[requestID]; h.free != nil {
		h.free()
	}
	delete(l.waiting, requestID)
	l.gone[requestID] = why
	if len(l.order) < remembered {
		l.order = append(l.order, requestID)
		return
	}
	delete(l.gone, l.order[l.next])
	l.order[l.next] = requestID
	l.next = (l.next + 1) % remembered
}

// sweep ends leases at most once a second; l.mu is held.
func (l *ledger) sweep(now time.Time) {
	if now.Sub(l.swept) < time.Second {
		return
	}
	l.swept = now
	l.expire(now)
}

func (l *ledger) expire(now time.Time) {
	for id, h := range l.waiting {
		if !now.Before(h.expires) {
			l.drop(id, errExpired)
			l.expired++
		}
	}
}

// counts tells how many hand-overs wait and how many were never fetched.
func (l *ledger) counts(now time.Time) (waiting, expired int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(now)
	return int64(len(l.waiting)), l.expired
}
