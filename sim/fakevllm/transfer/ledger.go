// Package transfer keeps the KV caches that wait for a decode, and has the side channels by
// which decodes fetch them.
package transfer

import (
	"errors"
	"sync"
	"time"
)

// The reasons why an engine refuses a claim.
var (
	errForeign  = errors.New("the engine id is not of this incarnation")
	ErrUnknown  = errors.New("unknown request id")
	errFreed    = errors.New("the blocks were freed, as a decode engine refused their request")
	errFetched  = errors.New("the blocks were fetched already")
	ErrExpired  = errors.New("the lease of the blocks has ended")
	ErrPrompt   = errors.New("the blocks are of another prompt")
	errRequest  = errors.New("the blocks are of another request id")
	errVersion  = errors.New("the handshake failed: the engines are of different versions")
	ErrTampered = errors.New("the transfer params came back changed")
)

// Offer is one finished prefill that waits for its decode.
type Offer struct {
	Prompt  uint64 // hash of the prompt's tokens
	Base    string // X-Request-Id of the prefill, "" when it had none
	Token   string // the integer above 2^53 that must come back digit by digit, "" if it need not
	expires time.Time
	Free    func() // releases the blocks
}

// Claim is what a decode presents to get the blocks of a prefill.
type Claim struct {
	EngineID, RequestID, Base, Token string
	Version                          string // of an engine that requires its own, "" for all others
	Prompt                           uint64
}

// Ledger keeps the offers of one incarnation of an engine.
type Ledger struct {
	EngineID string
	anyone   bool   // a claim may name any engine, as over P2P
	bound    bool   // the request must be that of the prefill, as with push
	version  string // "" of an engine that accepts all
	lease    time.Duration

	mu      sync.Mutex // guards everything below
	waiting map[string]Offer
	spent   recent[string, error] // fetched or expired ids, with the reason of a refusal
	expired int64
	swept   time.Time
}

// NewLedger returns an empty ledger, whose offers last for the lease.
func NewLedger(engineID, version string, lease time.Duration, anyone, bound bool) *Ledger {
	return &Ledger{EngineID: engineID, anyone: anyone, bound: bound, version: version, lease: lease, waiting: make(map[string]Offer), spent: newRecent[string, error](4096)}
}

// Put adds an offer.
func (l *Ledger) Put(requestID string, o Offer, now time.Time) {
	o.expires = now.Add(l.lease)
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.swept) >= time.Second {
		l.swept = now
		l.expire(now)
	}
	l.waiting[requestID] = o
}

// Take checks a claim and removes the offer.
func (l *Ledger) Take(c Claim, now time.Time) error {
	switch {
	case !l.anyone && c.EngineID != l.EngineID:
		return errForeign
	case l.version != "" && c.Version != "" && l.version != c.Version:
		return errVersion
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	o, ok := l.waiting[c.RequestID]
	switch {
	case ok && !now.Before(o.expires):
		l.drop(c.RequestID, ErrExpired)
		l.expired++
		return ErrExpired
	case !ok:
		if why := l.spent.m[c.RequestID]; why != nil {
			return why
		}
		return ErrUnknown
	case o.Prompt != c.Prompt:
		return ErrPrompt
	case (o.Base != "" || l.bound) && o.Base != c.Base:
		return errRequest
	case o.Token != "" && o.Token != c.Token:
		return ErrTampered
	}
	l.drop(c.RequestID, errFetched)
	return nil
}

// Free drops an offer that no engine will read.
func (l *Ledger) Free(engineID, requestID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.waiting[requestID]; ok && engineID == l.EngineID {
		l.drop(requestID, errFreed)
	}
}

// Answer handles a question on the side channel.
func (l *Ledger) Answer(q Question) (uint64, error) {
	switch q.Op {
	case "take":
		return 0, l.Take(q.Claim, time.Now())
	case "free":
		l.Free(q.EngineID, q.RequestID)
		return 0, nil
	}
	return 0, errQuestion
}

// drop forgets an offer but remembers why; l.mu is held.
func (l *Ledger) drop(requestID string, why error) {
	if o := l.waiting[requestID]; o.Free != nil {
		o.Free()
	}
	delete(l.waiting, requestID)
	l.spent.put(requestID, why)
}

// expire drops the offers whose lease has ended; l.mu is held.
func (l *Ledger) expire(now time.Time) {
	for id, o := range l.waiting {
		if !now.Before(o.expires) {
			l.drop(id, ErrExpired)
			l.expired++
		}
	}
}

// Counts returns the number of offers that wait and of those that were never fetched.
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
	return waits || l.spent.m[requestID] != nil
}

// recent is a map of the newest keys.
type recent[K comparable, V any] struct {
	limit int
	m     map[K]V
	order []K // of m; the oldest is at next once it is full
	next  int
}

func newRecent[K comparable, V any](limit int) recent[K, V] {
	return recent[K, V]{limit: limit, m: make(map[K]V)}
}

func (r *recent[K, V]) put(key K, v V) {
	if _, ok := r.m[key]; !ok {
		if len(r.order) < r.limit {
			r.order = append(r.order, key)
		} else {
			delete(r.m, r.order[r.next])
			r.order[r.next] = key
			r.next = (r.next + 1) % r.limit
		}
	}
	r.m[key] = v
}

// Shared is the KV pool of the engines of one process in plain mode.
type Shared struct {
	mu   sync.Mutex // guards pool
	pool recent[uint64, struct{}]
}

// NewShared returns an empty Shared.
func NewShared() *Shared { return &Shared{pool: newRecent[uint64, struct{}](1 << 16)} }

// Store puts a prompt into the pool.
func (s *Shared) Store(prompt uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool.put(prompt, struct{}{})
}

// Has reports whether a prompt is in the pool.
func (s *Shared) Has(prompt uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.pool.m[prompt]
	return ok
}
