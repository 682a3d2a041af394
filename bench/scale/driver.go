package scale

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// driver runs the engines and their registrations, and changes the registrations.
type driver struct {
	clients []*clientv3.Client
	layout  schema.Layout
	engines []*fakevllm.Server
	stay    []*node         // nodes whose records are changed
	move    []*node         // nodes that leave and return
	behind  int             // number of restarts that begin between two steps of one restart
	ctx     context.Context //nolint:containedctx // of the registrations, until close
	cancel  context.CancelFunc
	running sync.WaitGroup

	made, missed atomic.Int64 // changes, and changes that did not arrive in etcd
	once         sync.Once
	first        error // of a change
}

// node is an engine with its registration, which lease.Registrar makes as in an agent.
type node struct {
	d   *driver
	cli *clientv3.Client

	mu        sync.Mutex // guards the fields below
	rec       instance.Record
	life      int
	registrar *lease.Registrar // nil after the node has left
}

const (
	// perClient is the number of registrations that share a connection to etcd.
	perClient = 100
	// apart is the time between the steps of a restart, in which running requests end.
	apart = 3 * time.Second
	// arrives is the time limit of a change.
	arrives = 30 * time.Second
)

func startDriver(ctx context.Context, endpoints []string, o Options) (_ *driver, err error) {
	d := &driver{behind: 1 + o.Changes*int(apart.Seconds())/(60*6)}
	if d.layout, err = schema.NewLayout(schema.DefaultPrefix); err != nil {
		return nil, err
	}
	d.ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	for i := range o.Instances {
		if i%perClient == 0 {
			cli, err := etcd.Dial(etcd.Config{Endpoints: endpoints})
			if err != nil {
				return nil, err
			}
			d.clients = append(d.clients, cli)
		}
		n := &node{d: d, cli: d.clients[i/perClient]}
		role := fakevllm.RolePrefill
		if i >= o.Instances/2 {
			role = fakevllm.RoleDecode
		}
		if n.rec, err = d.engine(ctx, role, model); err != nil {
			return nil, err
		}
		if i%2 == 0 {
			d.stay = append(d.stay, n)
		} else {
			d.move = append(d.move, n)
		}
	}
	return d, d.settle(ctx)
}

// engine starts an engine and returns its record.
func (d *driver) engine(ctx context.Context, role fakevllm.Role, model string) (instance.Record, error) {
	o := fakevllm.Options{
		Role: role, Mode: fakevllm.NIXL, Models: []string{model}, RecordLimit: fakevllm.RecordNone,
		Version: "0.33.0", IdleTimeout: 10 * time.Minute,
	}
	if model != probeModel {
		o.TTFT, o.ITL = 20*time.Millisecond, 5*time.Millisecond
	}
	s, err := fakevllm.Start(ctx, o)
	if err != nil {
		return instance.Record{}, err
	}
	d.engines = append(d.engines, s)
	return instance.Record{
		ID: s.Address(), Role: instance.Role(role), Address: s.Address(), Models: []string{model}, Connector: "nixl",
		Version: "0.33.0", State: instance.Ready, Source: "agent", HostID: "scale", Labels: map[string]string{"zone": "a"},
	}, nil
}

func (d *driver) close() {
	d.cancel()
	d.running.Wait()
	for _, s := range d.engines {
		s.Close()
	}
	for _, cli := range d.clients {
		_ = cli.Close() // its only error is that the context has ended
	}
}

// change makes change number i. Every second change edits a record. The others restart nodes: in turn, one
// node begins to drain, another one leaves, and a third one returns.
func (d *driver) change(ctx context.Context, i int) {
	if i%2 == 0 {
		d.stay[i/2%len(d.stay)].update(ctx, i)
		return
	}
	switch k := i / 6; i / 2 % 3 {
	case 0:
		d.move[k%len(d.move)].drain(ctx)
	case 1:
		if k >= d.behind {
			d.move[(k-d.behind)%len(d.move)].leave(ctx)
		}
	default:
		if k >= 2*d.behind {
			d.move[(k-2*d.behind)%len(d.move)].join(ctx)
		}
	}
}

// settle makes all nodes registered and ready, and waits until etcd has every record.
func (d *driver) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range slices.Concat(d.move, d.stay) {
		group.Go(func() error {
			n.join(ctx)
			if n.rec.State != instance.Ready {
				n.set(ctx, func(r *instance.Record) { r.State = instance.Ready })
			}
			if !n.registrar.Settle(ctx) {
				return fmt.Errorf("%s is not registered: %+v", n.rec.Address, n.registrar.Status())
			}
			return nil
		})
	}
	return group.Wait()
}

// note counts a change, or the failure of one.
func (d *driver) note(err error) {
	if err == nil {
		d.made.Add(1)
		return
	}
	d.missed.Add(1)
	d.once.Do(func() { d.first = err })
}

var errLate = errors.New("etcd does not have the change in time")

// set changes the record of a registered node, and counts the change once it is in etcd.
func (n *node) set(ctx context.Context, edit func(*instance.Record)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.registrar == nil {
		return
	}
	edit(&n.rec)
	n.registrar.Set(n.rec)
	ctx, cancel := context.WithTimeout(ctx, arrives)
	defer cancel()
	var err error
	if !n.registrar.Settle(ctx) {
		err = fmt.Errorf("%s: %w", n.rec.Address, errLate)
	}
	n.d.note(err)
}

func (n *node) update(ctx context.Context, i int) {
	n.set(ctx, func(r *instance.Record) { r.Labels = map[string]string{"zone": "a", "change": strconv.Itoa(i)} })
}

func (n *node) drain(ctx context.Context) {
	n.set(ctx, func(r *instance.Record) { r.State = instance.Draining })
}

// leave ends the registration, as an agent does after it has drained its engine.
func (n *node) leave(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.registrar == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, arrives)
	defer cancel()
	n.d.note(n.registrar.Revoke(ctx))
	n.registrar = nil
}

// join registers a node that is not registered, as another incarnation.
func (n *node) join(ctx context.Context) {
	n.mu.Lock()
	if n.registrar != nil {
		n.mu.Unlock()
		return
	}
	n.life++
	n.rec.ID, n.rec.State = fmt.Sprintf("%s-%d", n.rec.Address, n.life), instance.Ready
	r := lease.NewRegistrar(n.cli, lease.RegistrarOptions{Layout: n.d.layout, Key: instance.Key{Role: n.rec.Role, Address: n.rec.Address}, HostID: n.rec.HostID})
	n.registrar = r
	n.mu.Unlock()
	n.d.running.Go(func() { r.Run(n.d.ctx) })
	n.set(ctx, func(*instance.Record) {})
}
