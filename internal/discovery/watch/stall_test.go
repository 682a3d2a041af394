package watch_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// alwaysPickable fails the test if any snapshot until its end
// lacks one of the instances, or has one that cannot be picked.
func alwaysPickable(t testing.TB, w *watch.Watcher, keys ...instance.Key) {
	t.Helper()
	members.EverySnapshot(t, w, func(s *instance.Snapshot) error {
		for _, k := range keys {
			if in, ok := s.Lookup(k); !ok || !in.Usable() && !in.Slow() {
				return fmt.Errorf("%s cannot be picked: %+v", k, in)
			}
		}
		return nil
	})
}

// The end of a lease removes no instance, whatever the state in
// its record: the agent did not write that the instance leaves.
func TestLostLease_KeepsEveryState(t *testing.T) {
	t.Parallel()
	// The prober refuses an address without facts, and two refused probes drop an
	// instance. Therefore, the unverified one is silent until it answers.
	p := &silentProber{silent: map[string]bool{}, misses: map[string]int{}}
	r := newOrphanRig(t, 3, func(o *watch.Options) {
		p.Prober = o.Prober.(*members.Prober)
		o.Prober = p
	})
	for _, c := range []struct{ name, value string }{
		{"slow", `{"id":"A","models":["m"],"state":"down","cause":"slow"}`},
		{"starting", `{"id":"A","models":["m"],"state":"starting"}`},
		{"unverified", ""},
	} {
		k := members.Decode("10.0.1.1:8100")
		p.set(k.Address, true)
		id := members.Lease(t, r.cli, 600)
		rev := members.Put(t, r.cli, r.l.Instance(k), c.value, clientv3.WithLease(id))
		before := members.WaitFor(t, r.w, k, atRevision(rev))
		if c.name == "slow" && !before.Slow() || c.name == "unverified" && before.View != instance.Unverified {
			t.Fatalf("%s: %+v", c.name, before)
		}
		members.Revoke(t, r.cli, id)
		// Its reason changes once the watcher has processed the deletion and etcd's answer
		// about the lease.
		testkit.Eventually(t, members.Soon, func() error {
			in, ok := r.w.Snapshot().Lookup(k)
			switch {
			case !ok:
				t.Fatalf("%s: dropped", c.name)
			case in.Reason == before.Reason:
				return fmt.Errorf("%s: not processed yet: %+v", c.name, in)
			case in.Record.State != before.Record.State || in.Usable() != before.Usable() || in.Slow() != before.Slow():
				t.Fatalf("%s: was %+v, is %+v", c.name, before, in)
			}
			return nil
		})
		// An unverified one is used once it answers.
		r.prober.Answer(k.Address, "m")
		p.set(k.Address, false)
		if c.name == "unverified" {
			members.WaitFor(t, r.w, k, orphan)
		}
		members.Put(t, r.cli, r.l.Override(k), `{"v":1,"state":"removed"}`)
		members.WaitFor(t, r.w, k, nil)
		members.Del(t, r.cli, r.l.Override(k))
		r.prober.Mu.Lock()
		delete(r.prober.Facts, k.Address)
		r.prober.Mu.Unlock()
	}
}

// silentProber does not answer probes of some addresses until they are released.
type silentProber struct {
	*members.Prober
	mu     sync.Mutex // guards the fields below
	silent map[string]bool
	misses map[string]int
}

func (p *silentProber) Probe(ctx context.Context, in *instance.Instance) (instance.Facts, error) {
	p.mu.Lock()
	silent := p.silent[in.Address]
	p.mu.Unlock()
	if !silent {
		return p.Prober.Probe(ctx, in)
	}
	p.mu.Lock()
	p.misses[in.Address]++
	p.mu.Unlock()
	return instance.Facts{}, fmt.Errorf("%w within a second", vllm.ErrTimeout)
}

func (p *silentProber) set(address string, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent[address] = silent
}

func (p *silentProber) missed(address string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.misses[address]
}

// An instance without a lease that accepts connections but does not answer stays in use
// while no other of its role answers. After a stall of the machine, engines are slow.
func TestOrphan_SilentKeptIfLast(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	p := &silentProber{Prober: members.NewProber(), silent: map[string]bool{}, misses: map[string]int{}}
	a, b := members.Decode("10.0.0.1:8200"), members.Decode("10.0.0.2:8200")
	id := members.Lease(t, cli, 600) // one lease, so that both lose it at once
	for _, k := range []instance.Key{a, b} {
		p.Answer(k.Address, "m")
		members.Put(t, cli, l.Instance(k), members.Ready, clientv3.WithLease(id))
	}
	o := members.Probing(t, p, "")
	o.OrphanGrace = time.Hour
	w := members.Watch(t, cli, o)
	for _, k := range []instance.Key{a, b} {
		members.WaitFor(t, w, k, members.Usable)
		p.set(k.Address, true)
	}
	members.WaitState(t, w, watch.Live)
	alwaysPickable(t, w, a)
	members.Revoke(t, cli, id)
	missed := func(k instance.Key, n int) {
		t.Helper()
		testkit.Until(t, members.Soon, func() int { return p.missed(k.Address) }, func(got int) bool { return got >= n })
	}
	missed(a, 6)
	missed(b, 6)
	for _, k := range []instance.Key{a, b} {
		members.WaitFor(t, w, k, orphan)
	}
	// Once one of them answers, the silence of the other one counts.
	p.set(a.Address, false)
	members.WaitFor(t, w, b, nil)
	p.set(a.Address, true)
	missed(a, p.missed(a.Address)+6)
	members.WaitFor(t, w, a, orphan)
}

// The audit detects a silent watch even if the only key that shows it
// changes all the time, so that each audit finds another difference.
func TestAudit_SilentWatchOfChangingKey(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	require.NoError(t, store.New(cli, l, "test").EnsureSchema(t.Context()))
	k := members.Prefill("10.0.0.1:8100")
	members.Put(t, cli, l.Instance(k), members.Ready)
	var deaf atomic.Bool
	w := members.Watch(t, lossy(t, etcd.Endpoint(), func(*mvccpb.Event) bool { return deaf.Load() }), auditing(t, members.NewProber()))
	members.WaitFor(t, w, k, members.Usable)
	members.WaitState(t, w, watch.Live)
	deaf.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			_, err := cli.Put(ctx, l.Instance(k), members.Ready)
			assert.False(t, err != nil && ctx.Err() == nil, "put: %v", err)
			<-tick.C
		}
	})
	defer wg.Wait()
	defer cancel()
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.Drift != 0 })
}
