// Package notice says in words what an operator should know of a fleet that serves, but
// not as it was built to: a role that is not used although it is there, and a connector
// that hands nothing over.
package notice

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/bypass"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Counts is what a proxy remembers of its requests for that. It hears what the recorder
// of package forward hears, and is safe for concurrent use. While all is well it costs a
// request two atomic reads.
type Counts struct {
	members func() *instance.Snapshot

	mu    sync.Mutex // guards the maps
	alone map[string]int64
	lost  map[instance.Key]lost
	// The sizes of the maps, to be read without the lock.
	reasons, losers atomic.Int64
}

// lost is how many answers of one life of a prefill instance handed nothing over, one
// behind the other.
type lost struct {
	life    string
	answers int64
}

// NewCounts makes Counts. members gives the present membership: what has left it is
// forgotten.
func NewCounts(members func() *instance.Snapshot) *Counts {
	return &Counts{members: members, alone: map[string]int64{}, lost: map[instance.Key]lost{}}
}

// Done hears of a request that has ended. Requests that decode served alone are counted
// until one is served by a pair, but for those that could have been.
func (c *Counts) Done(e *forward.Entry) {
	switch {
	case e.Decode == "", bypass.Chosen(e.DecodeOnly):
	case e.DecodeOnly != "":
		c.mu.Lock()
		c.alone[e.DecodeOnly]++
		c.reasons.Store(int64(len(c.alone)))
		c.mu.Unlock()
	case e.Prefill != "" && c.reasons.Load() > 0:
		c.mu.Lock()
		clear(c.alone)
		c.reasons.Store(0)
		c.mu.Unlock()
	}
}

// Handed hears of an answer of a prefill instance whose connector hands something over in
// it, and whether it did.
func (c *Counts) Handed(in *instance.Instance, something bool) {
	if something && c.losers.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.losers.Store(int64(len(c.lost))) }()
	if something {
		delete(c.lost, in.Key)
		return
	}
	was, known := c.lost[in.Key]
	if !known || was.life != in.Incarnation() {
		c.forget()
		was = lost{life: in.Incarnation()}
	}
	was.answers++
	c.lost[in.Key] = was
}

// forget drops the instances that have left, or begun another life.
func (c *Counts) forget() {
	s := c.members()
	maps.DeleteFunc(c.lost, func(k instance.Key, l lost) bool {
		in, ok := s.Lookup(k)
		return !ok || in.Incarnation() != l.life
	})
}

// read returns copies of what is counted.
func (c *Counts) read() (alone map[string]int64, lost map[instance.Key]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
	c.losers.Store(int64(len(c.lost)))
	lost = make(map[instance.Key]int64, len(c.lost))
	for k, l := range c.lost {
		lost[k] = l.answers
	}
	return maps.Clone(c.alone), lost
}
