// Package notice describes problems of a fleet that serves, but not as intended, to operators. Examples are
// a role that is not used although it has instances, and a connector that transfers nothing.
package notice

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Counts counts the requests of a proxy for notices. It receives the events of the recorder of
// package forward and is safe for concurrent use.
type Counts struct {
	members func() *instance.Snapshot

	mu         sync.Mutex // guards the maps
	decodeOnly map[string]int64
	lost       map[instance.Key]lost
	refused    map[leg.Class]map[instance.Key]time.Time // the last refusals of keys and of certificates
}

// lost counts the consecutive answers without a KV transfer of one incarnation of a prefill
// instance.
type lost struct {
	incarnation string
	answers     int64
}

// NewCounts returns Counts. members returns the current membership; instances that have left it
// are forgotten.
func NewCounts(members func() *instance.Snapshot) *Counts {
	return &Counts{
		members: members, decodeOnly: map[string]int64{}, lost: map[instance.Key]lost{},
		refused: map[leg.Class]map[instance.Key]time.Time{leg.EngineKey: {}, leg.Untrusted: {}},
	}
}

// Done counts a request that has ended. Decode-only requests are counted until a pair serves one;
// those whose reason is a choice are not counted.
func (c *Counts) Done(e *forward.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.Decode == "", bypass.Chosen(e.DecodeOnly):
	case e.DecodeOnly != "":
		c.decodeOnly[e.DecodeOnly]++
	case e.Prefill != "":
		clear(c.decodeOnly)
	}
}

// Handed counts an answer of a prefill instance whose connector requires transfer params; something
// reports whether the answer had them.
func (c *Counts) Handed(in *instance.Instance, something bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if something {
		delete(c.lost, in.Key)
		return
	}
	was, known := c.lost[in.Key]
	if !known || was.incarnation != in.Incarnation() {
		c.forget()
		was = lost{incarnation: in.Incarnation()}
	}
	was.answers++
	c.lost[in.Key] = was
}

// Failed records a leg that failed because of a key or a certificate.
func (c *Counts) Failed(k instance.Key, class leg.Class) {
	if class != leg.EngineKey && class != leg.Untrusted {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused[class][k] = time.Now()
}

// forget drops instances that have left, or have another incarnation, and refusals that are old.
func (c *Counts) forget() {
	s := c.members()
	for _, at := range c.refused {
		maps.DeleteFunc(at, func(k instance.Key, at time.Time) bool {
			_, ok := s.Lookup(k)
			return !ok || time.Since(at) > recent
		})
	}
	maps.DeleteFunc(c.lost, func(k instance.Key, l lost) bool {
		in, ok := s.Lookup(k)
		return !ok || in.Incarnation() != l.incarnation
	})
}

// read returns copies of the counts, and the names of the instances that refused a key or a certificate.
func (c *Counts) read() (decodeOnly map[string]int64, lost map[instance.Key]int64, refused map[leg.Class][]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
	lost = make(map[instance.Key]int64, len(c.lost))
	for k, l := range c.lost {
		lost[k] = l.answers
	}
	refused = map[leg.Class][]string{}
	for class, at := range c.refused {
		for k := range at {
			refused[class] = append(refused[class], k.String())
		}
		slices.Sort(refused[class])
	}
	return maps.Clone(c.decodeOnly), lost, refused
}
