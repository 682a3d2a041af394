package target

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/embedetcd"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Etcd is an etcd that serves our proxies.
type Etcd struct {
	Endpoint string
	server   *embedetcd.Server
	client   *clientv3.Client
	log      *os.File
}

// StartEtcd starts an etcd in this process, on the harness' core; proxies reach
// it over TCP. It waits for no disk, and is written to without a network in
// between: what etcd takes of the core is missed by the engines, so the targets
// wait for it, and that is not the question.
func (l *Lab) StartEtcd(ctx context.Context) (_ *Etcd, err error) {
	e := new(Etcd)
	if e.log, err = os.Create(filepath.Join(l.dir, "etcd.log")); err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	log := logrus.New()
	log.SetOutput(e.log)
	e.server, err = embedetcd.Start(ctx, embedetcd.Config{
		ListenClient: "127.0.0.1:0", DataDir: filepath.Join(l.dir, "etcd"), Log: log, Unsynced: true,
	})
	if err != nil {
		return nil, errors.Join(err, e.log.Close())
	}
	e.Endpoint, e.client = e.server.Endpoint(), e.server.Client()
	return e, nil
}

// Close ends it.
func (e *Etcd) Close() {
	_ = e.client.Close() // all it says is that its context has ended
	e.server.Close()
	_ = e.log.Close() // for whatever looks into the directory while it is there
}

// callTimeout bounds one call to etcd.
const callTimeout = 5 * time.Second

// leaseTTL is that of the instances' leases.
const leaseTTL = 30

// keysPerLease spreads the instances over leases: one of a lease for each
// would keep etcd busy with renewals, which is not the question.
const keysPerLease = 20

// Members are instances registered under one prefix.
type Members struct {
	etcd   *Etcd
	layout schema.Layout
	keys   []instance.Key
	values []string
	leases []clientv3.LeaseID
	absent map[int]bool
	rests  atomic.Bool
	// Changes counts what Run changed.
	Changes int
}

// Register writes a leased record for every instance.
func (e *Etcd) Register(ctx context.Context, prefix, connector string, prefill, decode []string) (*Members, error) {
	layout, err := schema.NewLayout(prefix)
	if err != nil {
		return nil, err
	}
	m := &Members{etcd: e, layout: layout, absent: make(map[int]bool)}
	for _, addr := range prefill {
		m.keys = append(m.keys, instance.Key{Role: instance.Prefill, Address: addr})
	}
	for _, addr := range decode {
		m.keys = append(m.keys, instance.Key{Role: instance.Decode, Address: addr})
	}
	for i, k := range m.keys {
		value, err := schema.EncodeRecord(instance.Record{
			ID: "life-of-" + k.Address, Role: k.Role, Address: k.Address, Models: []string{answer.Model},
			Connector: connector, State: instance.Ready, Source: "direct",
		})
		if err != nil {
			return nil, err
		}
		m.values = append(m.values, string(value))
		if i%keysPerLease == 0 {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			lease, err := e.client.Grant(ctx, leaseTTL)
			cancel()
			if err != nil {
				return nil, fmt.Errorf("register: %w", err)
			}
			m.leases = append(m.leases, lease.ID)
		}
		if err := m.put(ctx, i); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Members) put(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := m.etcd.client.Put(ctx, m.layout.Instance(m.keys[i]), m.values[i], clientv3.WithLease(m.leases[i/keysPerLease]))
	if err != nil {
		return fmt.Errorf("register %s: %w", m.keys[i], err)
	}
	return nil
}

func (m *Members) remove(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := m.etcd.client.Delete(ctx, m.layout.Instance(m.keys[i])); err != nil {
		return fmt.Errorf("sign off %s: %w", m.keys[i], err)
	}
	return nil
}

// Rest tells Run to change nothing for the time being, or to go on.
func (m *Members) Rest(is bool) { m.rests.Store(is) }

// Run renews the leases until ctx ends, and with perSecond > 0 changes the
// membership that often unless it rests: an instance signs off, or one that had
// comes back. At least one of each role stays.
func (m *Members) Run(ctx context.Context, perSecond float64, seed uint64) error {
	renew := time.NewTicker(leaseTTL * time.Second / 6)
	defer renew.Stop()
	var change <-chan time.Time
	if perSecond > 0 {
		t := time.NewTicker(time.Duration(float64(time.Second) / perSecond))
		defer t.Stop()
		change = t.C
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-renew.C:
			for _, id := range m.leases {
				call, cancel := context.WithTimeout(ctx, callTimeout)
				_, err := m.etcd.client.KeepAliveOnce(call, id)
				cancel()
				if err != nil && ctx.Err() == nil {
					return fmt.Errorf("renew a lease: %w", err)
				}
			}
		case <-change:
			if m.rests.Load() {
				continue
			}
			if err := m.toggle(ctx, rng); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// awayAtMost is the share of instances that are signed off at once.
const awayAtMost = 0.05

func (m *Members) toggle(ctx context.Context, rng *rand.Rand) error {
	m.Changes++
	limit := max(1, int(awayAtMost*float64(len(m.keys))))
	if len(m.absent) >= limit || len(m.absent) > 0 && rng.IntN(2) == 0 {
		for i := range m.absent { // any of them
			delete(m.absent, i)
			return m.put(ctx, i)
		}
	}
	i := rng.IntN(len(m.keys))
	for m.absent[i] {
		i = rng.IntN(len(m.keys))
	}
	m.absent[i] = true
	return m.remove(ctx, i)
}
