package handover

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
	ErrExpired  = errors.New("the lease of the hand-over has ended")
	ErrPrompt   = errors.New("the hand-over is of another prompt")
	errRequest  = errors.New("the hand-over is of another request id")
	errVersion  = errors.New("the handshake failed: the engines are of different versions")
	ErrTampered = errors.New("the hand-over's fields came back changed")
)

// Handover is one finished prefill that waits for its decode.
type Handover struct {
	Prompt  uint64 // hash of the prompt's tokens
	Base    string // X-Request-Id of the prefill, "" when it had none
	Token   string // the integer above 2^53 that must come back digit by digit, "" if it need not
	expires time.Time
	Free    func() // gives the blocks back
}

// Claim is what a decode shows to get a hand-over.
type Claim struct {
	EngineID, RequestID, Base, Token string
	Version                          string // of an engine that minds, "" for all others
	Prompt                           uint64
}

// Ledger keeps one incarnation's hand-overs.
type Ledger struct {
	EngineID string
	anyone   bool   // whatever asks may name any engine, as over P2P
	bound    bool   // the request must be the one of the prefill, as with push
	version  string // "" of an engine that does not mind
	lease    time.Duration

	mu      sync.Mutex // guards everything below
	waiting map[string]Handover
	gone    map[string]error // used or expired ids, so that a refusal says why
	order   []string         // of gone, oldest overwritten first
	next    int
	expired int64
	swept   time.Time
}

// NewLedger makes an empty one, whose hand-overs live for the lease.
func NewLedger(engineID, version string, lease time.Duration, anyone, bound bool) *Ledger {
	return &Ledger{EngineID: engineID, anyone: anyone, bound: bound, version: version, lease: lease, waiting: make(map[string]Handover), gone: make(map[string]error)}
}

func (l *Ledger) Put(requestID string, h Handover, now time.Time) {
	h.expires = now.Add(l.lease)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	l.waiting[requestID] = h
}

// Take returns a hand-over and removes it.
func (l *Ledger) Take(c Claim, now time.Time) error {
	switch {
	case !l.anyone && c.EngineID != l.EngineID:
		return errForeign
	case l.version != "" && c.Version != "" && l.version != c.Version:
		return errVersion
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h, ok := l.waiting[c.RequestID]
	if !ok {
		if why, ok := l.gone[c.RequestID]; ok {
			return why
		}
		return errUnknown
	}
	if !now.Before(h.expires) {
		l.drop(c.RequestID, ErrExpired)
		l.expired++
		return ErrExpired
	}
	switch {
	case h.Prompt != c.Prompt:
		return ErrPrompt
	case (h.Base != "" || l.bound) && h.Base != c.Base:
		return errRequest
	case h.Token != "" && h.Token != c.Token:
		return ErrTampered
	}
	l.drop(c.RequestID, errUsed)
	return nil
}

// Free drops a hand-over that no engine will read.
func (l *Ledger) Free(engineID, requestID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.waiting[requestID]; ok && engineID == l.EngineID {
		l.drop(requestID, errFreed)
	}
}

// drop forgets a hand-over but remembers why; l.mu is held.
func (l *Ledger) drop(requestID string, why error) {
	const remembered = 4096
	if h := l.waiting[requestID]; h.Free != nil {
		h.Free()
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
func (l *Ledger) sweep(now time.Time) {
	if now.Sub(l.swept) < time.Second {
		return
	}
	l.swept = now
	l.expire(now)
}

func (l *Ledger) expire(now time.Time) {
	for id, h := range l.waiting {
		if !now.Before(h.expires) {
			l.drop(id, ErrExpired)
			l.expired++
		}
	}
}

// Counts reports how many hand-overs wait and how many were never fetched.
func (l *Ledger) Counts(now time.Time) (waiting, expired int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(now)
	return int64(len(l.waiting)), l.expired
}

// Knows reports whether an id was used before.
func (l *Ledger) Knows(requestID string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, waits := l.waiting[requestID]
	_, gone := l.gone[requestID]
	return waits || gone
}
