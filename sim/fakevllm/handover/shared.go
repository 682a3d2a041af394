package handover

import "sync"

// poolEntries bounds how many prompts a shared pool remembers.
const poolEntries = 1 << 16

// Shared is what engines of one process have in common: the KV pool of plain
// mode and the hand-overs of NIXL mode, by engine id.
type Shared struct {
	mu      sync.Mutex // guards everything below
	pool    map[uint64]struct{}
	order   []uint64 // the pool's prompts, oldest overwritten first
	next    int
	engines map[string]*Ledger
}

// NewShared makes an empty pool.
func NewShared() *Shared {
	return &Shared{pool: make(map[uint64]struct{}), engines: make(map[string]*Ledger)}
}

// Store puts a prompt into the pool.
func (s *Shared) Store(prompt uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.pool[prompt]; ok {
		return
	}
	s.pool[prompt] = struct{}{}
	if len(s.order) < poolEntries {
		s.order = append(s.order, prompt)
		return
	}
	delete(s.pool, s.order[s.next])
	s.order[s.next] = prompt
	s.next = (s.next + 1) % poolEntries
}

// Has reports whether a prompt is in the pool.
func (s *Shared) Has(prompt uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.pool[prompt]
	return ok
}

// Join makes hand-overs known to the engines of the process.
func (s *Shared) Join(l *Ledger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engines[l.EngineID] = l
}

// Leave takes them back.
func (s *Shared) Leave(l *Ledger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.engines, l.EngineID)
}

// Ledger is that of an engine, nil for one of another process.
func (s *Shared) Ledger(engineID string) *Ledger {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engines[engineID]
}
