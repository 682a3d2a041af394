// Package transfer keeps the KV caches that wait for a decode, and has the side channels by
// which decodes fetch them.
package transfer

import "sync"

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
