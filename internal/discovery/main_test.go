package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit"
	"github.com/pdmesh/pdmesh/internal/testkit/leak"
)

func TestMain(m *testing.M) {
	testkit.MaybeRunEtcd()
	leak.Main(m)
}

// soon is how long a test waits for what should happen: plenty, since a
// machine under test load is slow, and nothing is asserted on it.
const soon = time.Minute

func layout(t testing.TB) discovery.Layout {
	t.Helper()
	l, err := discovery.NewLayout("/pd")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func prefill(address string) instance.Key {
	return instance.Key{Role: instance.Prefill, Address: address}
}

func decode(address string) instance.Key {
	return instance.Key{Role: instance.Decode, Address: address}
}

func put(t testing.TB, cli *clientv3.Client, key, value string, opts ...clientv3.OpOption) int64 {
	t.Helper()
	resp, err := cli.Put(t.Context(), key, value, opts...)
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return resp.Header.Revision
}

func del(t testing.TB, cli *clientv3.Client, key string) {
	t.Helper()
	if _, err := cli.Delete(t.Context(), key); err != nil {
		t.Fatalf("delete %s: %v", key, err)
	}
}

func lease(t testing.TB, cli *clientv3.Client, ttl int64) clientv3.LeaseID {
	t.Helper()
	resp, err := cli.Grant(t.Context(), ttl)
	if err != nil {
		t.Fatalf("grant: %v", err)
	}
	return resp.ID
}

const ready = `{"v":1,"id":"A","models":["m"],"state":"ready"}`

// watch starts a Watcher that ends with the test.
func watch(t testing.TB, cli *clientv3.Client, o discovery.WatcherOptions) *discovery.Watcher {
	t.Helper()
	w := discovery.NewWatcher(cli, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("watcher ended with %v", err)
		}
	})
	return w
}

// quick is a Watcher whose timers suit a test.
func quick(t testing.TB) discovery.WatcherOptions {
	return discovery.WatcherOptions{
		Layout:          layout(t),
		WaitingInterval: 20 * time.Millisecond,
		CheckInterval:   50 * time.Millisecond,
	}
}

func waitReady(t testing.TB, w *discovery.Watcher) {
	t.Helper()
	select {
	case <-w.Ready():
	case <-time.After(soon):
		t.Fatalf("no first list: %+v", w.Status())
	}
}

// waitState waits for a state of the Watcher.
func waitState(t testing.TB, w *discovery.Watcher, want discovery.WatcherState) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		if s := w.Status(); s.State != want {
			return fmt.Errorf("state is %s, want %s (%+v)", s.State, want, s)
		}
		return nil
	})
}

// waitFor waits until an instance is as wanted, or absent if want is nil.
func waitFor(t testing.TB, w *discovery.Watcher, k instance.Key, want func(*instance.Instance) error) *instance.Instance {
	t.Helper()
	var found *instance.Instance
	testkit.Eventually(t, soon, func() error {
		in, ok := w.Snapshot().Lookup(k)
		found = in
		switch {
		case want == nil && ok:
			return fmt.Errorf("%s is still there: %+v", k, in)
		case want == nil:
			return nil
		case !ok:
			return fmt.Errorf("%s is not there", k)
		}
		return want(in)
	})
	return found
}

func usable(in *instance.Instance) error {
	if !in.Usable() {
		return fmt.Errorf("%s is not usable: %+v", in.Key, in)
	}
	return nil
}

func hasView(v instance.View) func(*instance.Instance) error {
	return func(in *instance.Instance) error {
		if in.View != v {
			return fmt.Errorf("view of %s is %q (%s), want %q", in.Key, in.View, in.Reason, v)
		}
		return nil
	}
}

func atRevision(rev int64) func(*instance.Instance) error {
	return func(in *instance.Instance) error {
		if in.ModRevision != rev {
			return fmt.Errorf("%s is at revision %d, want %d", in.Key, in.ModRevision, rev)
		}
		return nil
	}
}

// pendings lists the pending adds of a snapshot.
func pendings(s *instance.Snapshot) []*instance.Instance {
	var out []*instance.Instance
	for _, in := range s.All() {
		if in.View == instance.Pending {
			out = append(out, in)
		}
	}
	return out
}

// fakeProber answers as told; instances nobody spoke of refuse.
type fakeProber struct {
	mu     sync.Mutex // guards all fields
	facts  map[string]instance.Facts
	probes map[string]int
	now    int
	most   int
	hold   chan struct{} // if set, probes wait for its end
}

func newProber() *fakeProber {
	return &fakeProber{facts: map[string]instance.Facts{}, probes: map[string]int{}}
}

func (p *fakeProber) answer(address string, models ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.facts[address] = instance.Facts{Models: models, MaxModelLen: 4096, Version: "0.12.0"}
}

func (p *fakeProber) set(address string, f instance.Facts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.facts[address] = f
}

func (p *fakeProber) count(address string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.probes[address]
}

var errRefused = errors.New("connection refused")

func (p *fakeProber) Probe(ctx context.Context, in *instance.Instance) (instance.Facts, error) {
	p.mu.Lock()
	p.probes[in.Address]++
	p.now++
	p.most = max(p.most, p.now)
	f, ok := p.facts[in.Address]
	hold := p.hold
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.now--
		p.mu.Unlock()
	}()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return instance.Facts{}, ctx.Err()
		}
	}
	if !ok {
		return instance.Facts{}, errRefused
	}
	return f, nil
}
