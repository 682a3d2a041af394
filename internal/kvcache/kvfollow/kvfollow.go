// Package kvfollow keeps an index of KV caches in step with the membership. It follows the KV events of each
// data-parallel rank of each usable instance of some roles, and drops the blocks of engines that have left or
// restarted.
//
// The endpoints of a rank are those that the engine reports (GET /kv_event_sources, since vLLM 0.31), else
// those of its record. A wildcard is replaced by the instance's host. The dialer restricts the addresses, so
// that an engine cannot make the proxy connect to other services.
package kvfollow

import (
	"cmp"
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
)

// Membership provides the current snapshot.
type Membership func() *instance.Snapshot

// Options configure a Follower.
type Options struct {
	Index      *kvindex.Index
	Membership Membership
	Roles      []instance.Role // of the engines to follow; default both
	// Ask queries an engine for its sources; see Sources.
	Ask func(context.Context, *instance.Instance) (map[int]kvevents.Publisher, error)
	// Dial connects to endpoints. It must refuse addresses that the proxy may not connect to.
	Dial zmq.DialFunc
	// AskAgain is the time between two queries to an engine that reported no source, or whose connection
	// has ended; default 30 s.
	AskAgain time.Duration
}

// Follower follows all publishers of a membership.
type Follower struct {
	o Options

	queue *kvevents.Memory // of all sources
	work  sync.WaitGroup   // of members

	mu      sync.Mutex
	members map[string]*member       // by address
	ending  map[string]chan struct{} // done of the last former member by address, until it is closed
}

// member is one incarnation of one engine, with the endpoints of its record.
type member struct {
	in   *instance.Instance
	stop context.CancelFunc
	done chan struct{} // closed when all its goroutines have ended

	mu      sync.Mutex
	sources map[int]*kvevents.Source // by rank
	trouble string                   // why there are no sources
	hints   map[int]string           // possible reasons for a lost rank
}

// New returns a Follower. Run starts it.
func New(o Options) *Follower {
	o.AskAgain = cmp.Or(o.AskAgain, 30*time.Second)
	if o.Roles == nil {
		o.Roles = instance.Roles()
	}
	return &Follower{
		o: o, queue: kvevents.NewMemory(kvevents.QueueLimit),
		members: make(map[string]*member), ending: make(map[string]chan struct{}),
	}
}

// Queue returns the bytes of the events that wait to be applied, their limit, and the
// number of messages that were dropped because of it.
func (f *Follower) Queue() (used, limit int64, dropped uint64) { return f.queue.Stats() }

// Run follows the membership until the context ends.
func (f *Follower) Run(ctx context.Context) {
	defer f.work.Wait()
	defer f.update(ctx, nil)
	instance.Follow(ctx, f.o.Membership, func(_, snap *instance.Snapshot) { f.update(ctx, snap) })
}

// update stops following the engines that a snapshot lacks, and starts following those that are new or whose
// record has other endpoints. A nil snapshot has no engines. update waits for no engine: a new member itself
// waits until the former one has ended, since both have the same targets.
func (f *Follower) update(ctx context.Context, snap *instance.Snapshot) {
	want := map[string]*instance.Instance{}
	if snap != nil {
		for _, role := range f.o.Roles {
			for _, in := range snap.Usable(role) {
				want[in.Address] = in // an engine can be in both roles
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for address, m := range f.members {
		if is := want[address]; is == nil || is.Incarnation() != m.in.Incarnation() || !maps.Equal(is.Record.KVEvents, m.in.Record.KVEvents) {
			m.stop()
			delete(f.members, address)
			f.ending[address] = m.done
		}
	}
	for address, done := range f.ending {
		select {
		case <-done:
			delete(f.ending, address)
		default:
		}
	}
	for address, in := range want {
		if f.members[address] != nil {
			continue
		}
		life, stop := context.WithCancel(ctx)
		m := &member{in: in, stop: stop, done: make(chan struct{})}
		f.members[address] = m
		former := f.ending[address]
		f.work.Go(func() {
			defer close(m.done)
			if former != nil {
				<-former
			}
			f.follow(life, m)
		})
	}
}

// follow serves one incarnation of an engine: it queries the engine until it reports its publishers, and
// follows each rank until the context ends. An engine without an agent may restart within an incarnation, and
// then use other endpoints.
func (f *Follower) follow(ctx context.Context, m *member) {
	for ctx.Err() == nil {
		publishers := f.find(ctx, m)
		running, stop := context.WithCancel(ctx)
		ended := make(chan struct{}, 1)
		var work sync.WaitGroup
		m.mu.Lock()
		m.sources = make(map[int]*kvevents.Source, len(publishers))
		for rank, p := range publishers {
			target := kvindex.Target{Address: m.in.Address, Rank: rank}
			s := kvevents.NewSource(p, f.o.Dial, handler{f.o.Index, target, ended}, f.queue)
			m.sources[rank] = s
			work.Go(func() {
				defer f.o.Index.Drop(target)
				s.Run(running)
			})
		}
		m.mu.Unlock()
		f.awaitChange(ctx, m.in, publishers, ended)
		stop()
		work.Wait()
		m.mu.Lock()
		m.sources = nil
		m.mu.Unlock()
	}
}

// awaitChange blocks until an engine whose connection has ended reports other publishers, or the
// context ends.
func (f *Follower) awaitChange(ctx context.Context, in *instance.Instance, publishers map[int]kvevents.Publisher, ended <-chan struct{}) {
	for sleep.For(ctx, f.o.AskAgain) {
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
		if now, _, err := Find(ctx, f.o.Ask, in); err == nil && !maps.Equal(now, publishers) {
			return
		}
	}
}

// find returns the publishers of the ranks. There are none when the context has ended.
func (f *Follower) find(ctx context.Context, m *member) map[int]kvevents.Publisher {
	for {
		publishers, hints, err := Find(ctx, f.o.Ask, m.in)
		m.mu.Lock()
		m.trouble, m.hints = "", hints
		switch {
		case len(publishers) > 0:
		case err != nil:
			m.trouble = err.Error()
		default:
			m.trouble = "it publishes no KV events"
		}
		m.mu.Unlock()
		if len(publishers) > 0 {
			return publishers
		}
		if !sleep.For(ctx, f.o.AskAgain) {
			return nil
		}
	}
}

// Find returns the publisher of each rank of an instance, by the rank numbers of requests: as reported by the
// engine, or else from its record. hints has the reasons, by rank, why a publisher may not be reachable.
func Find(ctx context.Context, ask func(context.Context, *instance.Instance) (map[int]kvevents.Publisher, error), in *instance.Instance) (publishers map[int]kvevents.Publisher, hints map[int]string, err error) {
	publishers, err = ask(ctx, in)
	hints = connecting(publishers)
	if len(publishers) == 0 {
		publishers = publishersOf(in.Record.KVEvents)
	}
	publishers = instance.LocalRanks(in, publishers)
	host, _, _ := net.SplitHostPort(in.Address)
	for rank, p := range publishers {
		for _, endpoint := range []*string{&p.Endpoint, &p.Replay} {
			*endpoint = cmp.Or(vllmargs.EndpointOf(0, *endpoint, host), *endpoint)
		}
		publishers[rank] = p
	}
	return publishers, instance.LocalRanks(in, hints), err
}

// connecting returns the reasons, by rank, why a proxy cannot connect to the endpoint that the engine
// reports. A publisher binds only to an endpoint with a wildcard or with a port chosen by the system; to any
// other endpoint, it connects.
func connecting(publishers map[int]kvevents.Publisher) map[int]string {
	hints := map[int]string{}
	for rank, p := range publishers {
		endpoint := "the engine's endpoint " + instance.Printable(p.Endpoint, 80)
		switch {
		case vllmargs.Inside(p.Endpoint):
			hints[rank] = endpoint + " is reached from inside its machine only, and cannot be followed; it needs one like " + vllmargs.DefaultEvents
		case !vllmargs.Binds(p.Endpoint):
			hints[rank] = endpoint + " has no wildcard: its publisher connects there instead of listening, and cannot be followed; it needs one like " + vllmargs.DefaultEvents
		}
	}
	return hints
}

// handler applies the events of a Source to the index.
type handler struct {
	index  *kvindex.Index
	target kvindex.Target
	ended  chan<- struct{} // receives a value if a connection may have ended
}

func (h handler) Apply(b *kvevents.Batch) { h.index.Apply(h.target, b) }
func (h handler) Reset()                  { h.index.Reset(h.target) }
func (h handler) SetComplete(is bool)     { h.index.SetComplete(h.target, is) }

func (h handler) SetLive(live bool) {
	h.index.SetLive(h.target, live)
	if !live {
		select {
		case h.ended <- struct{}{}:
		default:
		}
	}
}

// Status is the state of the event stream of one rank.
type Status struct {
	Address string
	Rank    int
	kvevents.Status
	Index kvindex.Stats
	Hint  string // why its endpoint may not be reachable; "" if no reason is known
}

// Status lists all ranks of all members, by address and rank. A member without known sources is listed once,
// as lost, with the reason.
func (f *Follower) Status() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Status
	for _, address := range slices.Sorted(maps.Keys(f.members)) {
		m := f.members[address]
		m.mu.Lock()
		if len(m.sources) == 0 {
			out = append(out, Status{Address: address, Status: kvevents.Status{State: kvevents.Lost, Error: m.trouble}})
		}
		for _, rank := range slices.Sorted(maps.Keys(m.sources)) {
			is := m.sources[rank].Status()
			hint := m.hints[rank]
			if is.State != kvevents.Lost || is.Error == "" || is.Resets > 0 { // it was reachable before
				hint = ""
			}
			if hint != "" {
				is.Error = hint + " (" + is.Error + ")"
			}
			out = append(out, Status{
				Address: address, Rank: rank, Status: is, Hint: hint,
				Index: f.o.Index.Stats(kvindex.Target{Address: address, Rank: rank}),
			})
		}
		m.mu.Unlock()
	}
	return out
}
