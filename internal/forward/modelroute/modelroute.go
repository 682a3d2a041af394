// Package modelroute chooses the model, and the instances that serve it, for a request whose model
// is the name of a model route.
//
// Requests with the same session or API key go to the same target, by weighted rendezvous
// hashing. All proxies make the same choice, and a change of weights moves only the share that it
// must. All other requests take turns in a sequence that follows the weights in each part of it.
package modelroute

import (
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Target is one target of a route.
type Target struct {
	Name   string            // unique in its route
	Model  string            // model that the engines serve
	Labels instance.Selector // of the instances; nil: any
	Weight int

	Quoted string // Model as JSON
	Queue  string // the name of its queue
	// Requests counts the requests that the target got last, PassedOver those for which it was
	// chosen but that another target got. Both survive changes of the route.
	Requests, PassedOver *atomic.Uint64
	hash                 uint64
}

// Values of Route.Sticky: what keeps a client's requests on one target.
const (
	ByKey  = "key"  // the name of the API key
	ByNone = "none" // nothing
)

// Route is a model route.
type Route struct {
	Name    string
	Sticky  string // ByKey, ByNone, or any other text: the session
	Targets []*Target
	// Own reports whether the route may have the name of a model that engines serve.
	Own bool

	Quoted string // Name as JSON
	turn   *atomic.Uint64
}

// Decode reads the documents of model routes.
type Decode func(*instance.Documents) []*Route

// Routes are the model routes of the current snapshot. They are safe for concurrent use.
type Routes struct {
	source instance.Source
	decode Decode
	table  atomic.Pointer[table]
	mu     sync.Mutex // serializes changes of table
}

type table struct {
	documents *instance.Documents
	byName    map[string]*Route
	list      []*Route
}

// New returns the routes in the documents of a source.
func New(source instance.Source, decode Decode) *Routes {
	return &Routes{source: source, decode: decode}
}

func (r *Routes) now() *table {
	documents := r.source.Snapshot().Documents
	if t := r.table.Load(); t != nil && t.documents == documents {
		return t
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.table.Load()
	if old != nil && old.documents == documents {
		return old
	}
	t := &table{documents: documents, list: r.decode(documents), byName: map[string]*Route{}}
	for _, one := range t.list {
		one.turn, one.Quoted = new(atomic.Uint64), quote(one.Name)
		if old != nil && old.byName[one.Name] != nil {
			one.turn = old.byName[one.Name].turn // other routes have changed, or the weights
		}
		for _, target := range one.Targets {
			target.Quoted, target.hash = quote(target.Model), policy.HashText(target.Name)
			target.Queue = instance.QueueName(target.Model, target.Labels)
			if was := old.target(one.Name, target.Name); was != nil {
				target.Requests, target.PassedOver = was.Requests, was.PassedOver
			} else {
				target.Requests, target.PassedOver = new(atomic.Uint64), new(atomic.Uint64)
			}
		}
		t.byName[one.Name] = one
	}
	r.table.Store(t)
	return t
}

// target returns the target of a route, nil if there is none.
func (t *table) target(route, name string) *Target {
	if t == nil || t.byName[route] == nil {
		return nil
	}
	for _, one := range t.byName[route].Targets {
		if one.Name == name {
			return one
		}
	}
	return nil
}

func quote(name string) string { return string(openai.Marshal(name)) }

// Find returns the route with the name of a model, nil if there is none. A nil Routes has none.
func (r *Routes) Find(model string) *Route {
	if r == nil {
		return nil
	}
	return r.now().byName[model]
}

// List returns all routes, by name.
func (r *Routes) List() []*Route {
	if r == nil {
		return nil
	}
	return r.now().list
}

// Choice is the choice of a target for one request. It belongs to one goroutine.
type Choice struct {
	Route *Route
	// PassedOver are the names of the targets that were chosen and did not serve the request.
	PassedOver []string
	// Target is the current target.
	Target *Target

	key   string // session or API key, which determines the target; "" if neither does
	turn  uint64
	tried uint64 // bit set of the targets that Next has returned
}

// Begin returns the choice for a request of this session and API key.
func (r *Route) Begin(session, key string) *Choice {
	c := r.Preview(session, key)
	if c.key == "" {
		c.turn = r.turn.Add(1) * golden
	}
	return c
}

// golden is the golden ratio in 64 bits. Its successive multiples are spread evenly, so
// each target gets its share in any sequence of turns.
const golden = 0x9e3779b97f4a7c15

// Preview returns what Begin would return, without taking a turn.
func (r *Route) Preview(session, key string) *Choice {
	c := &Choice{Route: r, key: session, turn: (r.turn.Load() + 1) * golden}
	switch r.Sticky {
	case ByKey:
		c.key = key
	case ByNone:
		c.key = ""
	}
	return c
}

// Next selects the next target, and reports whether one was left. Weights and key choose
// among the usable targets, or among the others if none is usable.
func (c *Choice) Next(usable func(*Target) bool) bool {
	passed := c.PassedOver
	if c.Target != nil {
		passed = append(passed, c.Target.Name)
	}
	first, skip, n := -1, c.tried, len(passed)
	for at := c.best(skip); at >= 0; at = c.best(skip) {
		t := c.Route.Targets[at]
		if usable(t) {
			c.set(at, passed)
			return true
		}
		if first < 0 {
			first = at
		}
		skip |= 1 << at
		passed = append(passed, t.Name)
	}
	if first < 0 {
		return false
	}
	c.set(first, passed[:n])
	return true
}

// Left reports whether Next would return a usable target.
func (c *Choice) Left(usable func(*Target) bool) bool {
	for i, t := range c.Route.Targets {
		if c.tried&(1<<i) == 0 && usable(t) {
			return true
		}
	}
	return false
}

// Restart begins again with the first target.
func (c *Choice) Restart() { c.Target, c.PassedOver, c.tried = nil, nil, 0 }

// Share returns the weight of the current target divided by the sum of all weights, 0 if they are 0.
func (c *Choice) Share() float64 {
	total := 0
	for _, t := range c.Route.Targets {
		total += t.Weight
	}
	return float64(c.Target.Weight) / float64(max(total, 1))
}

func (c *Choice) set(at int, passed []string) {
	c.Target, c.PassedOver = c.Route.Targets[at], passed
	c.tried |= 1 << at
}

// best returns the index of the target that weights and key choose among those that are not
// in skip, -1 if there is none.
func (c *Choice) best(skip uint64) int {
	total, best, least := uint64(0), -1, 0.0
	for i, t := range c.Route.Targets {
		if skip&(1<<i) != 0 {
			continue
		}
		if total += uint64(t.Weight); c.key == "" {
			if best < 0 {
				best = i
			}
			continue
		}
		if d := policy.Distance(c.key, t.hash, max(float64(t.Weight), 1e-9)); best < 0 || d < least {
			best, least = i, d
		}
	}
	if c.key != "" || total == 0 {
		return best
	}
	turn := c.turn
	if skip != 0 { // share the requests of a skipped target by weight, too
		turn = rand.NewPCG(turn, skip).Uint64()
	}
	at, _ := bits.Mul64(turn, total)
	for i, t := range c.Route.Targets {
		if skip&(1<<i) != 0 {
			continue
		}
		if at < uint64(t.Weight) {
			return i
		}
		at -= uint64(t.Weight)
	}
	return best
}
