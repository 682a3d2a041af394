package fault

import (
	"math/rand/v2"
	"strings"
	"sync"
)

// Script is the list of faults active. Its zero value is empty.
type Script struct {
	mu    sync.Mutex // guards list
	list  []*scripted
	fired int64
}

type scripted struct {
	Fault
	seen, hits int
	rnd        *rand.Rand
}

// Add puts faults behind those active, all or none.
func (s *Script) Add(faults []Fault) error {
	checked := make([]*scripted, 0, len(faults))
	for _, f := range faults {
		f, err := f.checked()
		if err != nil {
			return err
		}
		// A predictable generator is the point: a seed repeats a run.
		checked = append(checked, &scripted{Fault: f, rnd: rand.New(rand.NewPCG(f.Seed, 0x9e3779b97f4a7c15))})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, checked...)
	return nil
}

// Clear ends them all; those that happen now go on.
func (s *Script) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = nil
}

// Match picks the fault for a request, nil for none. generates reports whether the route generates.
func (s *Script) Match(path, rank string, generates bool) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.list {
		if !f.matches(path, rank, generates) || f.Times > 0 && f.hits >= f.Times {
			continue
		}
		f.seen++
		if f.seen < f.Nth || f.Probability > 0 && f.rnd.Float64() >= f.Probability {
			continue
		}
		f.hits++
		s.fired++
		fault := f.Fault
		return &fault
	}
	return nil
}

// Fired is how many have happened.
func (s *Script) Fired() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fired
}

func (f *Fault) matches(path, rank string, generates bool) bool {
	if f.Rank != "" && f.Rank != rank {
		return false
	}
	if f.Path == "" {
		return generates
	}
	if prefix, ok := strings.CutSuffix(f.Path, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return path == f.Path
}
