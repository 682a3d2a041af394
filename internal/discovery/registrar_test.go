package discovery_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit"
)

// register starts a Registrar that ends with the test.
func register(t testing.TB, cli *clientv3.Client, o discovery.RegistrarOptions) *discovery.Registrar {
	t.Helper()
	r := discovery.NewRegistrar(cli, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("registrar ended with %v", err)
		}
	})
	return r
}

func waitPhase(t testing.TB, r *discovery.Registrar, want discovery.Phase) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		if s := r.Status(); s.Phase != want {
			return fmt.Errorf("phase is %s (%s), want %s", s.Phase, s.Err, want)
		}
		return nil
	})
}

// rawKey is the record's key as etcd has it, or nil.
func rawKey(t testing.TB, cli *clientv3.Client, k instance.Key) *discovery.RawKey {
	t.Helper()
	raw, err := discovery.NewStore(cli, layout(t), "test").Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range raw {
		if r.Key == layout(t).Instance(k) {
			return &r
		}
	}
	return nil
}

const testTTL = 3 * time.Second

func options(t testing.TB, k instance.Key) discovery.RegistrarOptions {
	return discovery.RegistrarOptions{Layout: layout(t), Key: k, TTL: testTTL, HostID: "host-1"}
}

// What a new registrar does with the key as it finds it.
func TestRegistrarOwnership(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	removed := `{"v":1,"state":"removed"}`
	for i, c := range []struct {
		name     string
		value    string // of the record that is there; "-": none
		leased   bool
		override string
		want     discovery.Phase
		says     string
	}{
		{name: "absent", value: "-", want: discovery.Registered},
		{name: "same id", value: `{"id":"A","host_id":"elsewhere"}`, leased: true, want: discovery.Registered},
		{name: "same host, other id", value: `{"id":"B","host_id":"host-1"}`, leased: true, want: discovery.Registered},
		{name: "other host", value: `{"id":"B","host_id":"host-2","agent":"x\u0007"}`, leased: true, want: discovery.Conflict, says: `host-2`},
		{name: "no host id", value: `{"id":"B"}`, leased: true, want: discovery.Conflict},
		{name: "leased bare record", value: ``, leased: true, want: discovery.Conflict},
		{name: "leased broken value", value: `{`, leased: true, want: discovery.Conflict, says: "cannot be read"},
		{name: "static", value: `{"models":["m"]}`, want: discovery.StaticPresent},
		{name: "static with our id", value: `{"id":"A","host_id":"host-1"}`, want: discovery.StaticPresent},
		{name: "static bare", value: ``, want: discovery.StaticPresent},
		{name: "removed", value: "-", override: removed, want: discovery.Overridden, says: "removed"},
		{name: "removed, with a record", value: `{"id":"A"}`, leased: true, override: removed, want: discovery.Overridden},
		{name: "drained", value: "-", override: `{"v":1,"state":"drain"}`, want: discovery.Registered},
		{name: "broken override", value: "-", override: `{"state":`, want: discovery.Registered},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := prefill(fmt.Sprintf("10.0.0.%d:8100", i+1))
			if c.override != "" {
				put(t, cli, l.Override(k), c.override)
			}
			if c.value != "-" {
				var opts []clientv3.OpOption
				if c.leased {
					opts = append(opts, clientv3.WithLease(lease(t, cli, 600)))
				}
				put(t, cli, l.Instance(k), c.value, opts...)
			}
			before := rawKey(t, cli, k)
			r := register(t, cli, options(t, k))
			r.Set(instance.Record{ID: "A", Models: []string{"m"}})
			waitPhase(t, r, c.want)
			s, after := r.Status(), rawKey(t, cli, k)
			if c.want == discovery.Registered {
				if after == nil || after.Lease != s.LeaseID || after.ModRevision != s.ModRevision || s.Err != "" {
					t.Fatalf("status %+v, key %+v", s, after)
				}
				if !strings.Contains(string(after.Value), `"host_id":"host-1"`) {
					t.Fatalf("value %s", after.Value)
				}
				return
			}
			if s.ModRevision != 0 || s.Err == "" || !strings.Contains(s.Err, c.says) || strings.Contains(s.Err, "\a") {
				t.Errorf("status %+v", s)
			}
			if (before == nil) != (after == nil) {
				t.Fatalf("before %+v, after %+v", before, after)
			}
			if before != nil && (before.ModRevision != after.ModRevision || before.Lease != after.Lease || string(before.Value) != string(after.Value)) {
				t.Fatalf("the key was touched: before %+v, after %+v", before, after)
			}
		})
	}
}

func TestRegistrarWaitsForFirstSet(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	k := prefill("10.0.0.1:8100")
	r := register(t, cli, options(t, k))
	if s := r.Status(); s.Phase != discovery.Idle || s.LeaseID != 0 {
		t.Fatalf("%+v", s)
	}
	r.Set(instance.Record{ID: "A"})
	r.Set(instance.Record{ID: "A", State: instance.Draining})
	testkit.Eventually(t, soon, func() error {
		if raw := rawKey(t, cli, k); raw == nil || !strings.Contains(string(raw.Value), "draining") {
			return fmt.Errorf("%+v", raw)
		}
		return nil
	})
	// The lease is renewed.
	testkit.Eventually(t, soon, func() error {
		if s := r.Status(); s.Renewals < 2 {
			return fmt.Errorf("%d renewals", s.Renewals)
		}
		return nil
	})
}

// Fault matrix, row 12's little sister: the lease is gone although the agent lives.
func TestRegistrarLeaseLost(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	k := prefill("10.0.0.1:8100")
	var mu sync.Mutex
	var phases []discovery.Phase
	o := options(t, k)
	o.OnEvent = func(s discovery.RegistrationStatus) {
		mu.Lock()
		defer mu.Unlock()
		phases = append(phases, s.Phase)
	}
	r := register(t, cli, o)
	r.Set(instance.Record{ID: "A"})
	waitPhase(t, r, discovery.Registered)
	first := r.Status().LeaseID
	if _, err := cli.Revoke(t.Context(), clientv3.LeaseID(first)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, soon, func() error {
		s, raw := r.Status(), rawKey(t, cli, k)
		if s.LeasesLost != 1 || s.Registrations != 2 || s.LeaseID == first || raw == nil || raw.Lease != s.LeaseID {
			return fmt.Errorf("%+v, %+v", s, raw)
		}
		return nil
	})
	waitPhase(t, r, discovery.Registered)
	mu.Lock()
	defer mu.Unlock()
	want := "[registering registered registering registered]"
	if got := fmt.Sprint(phases); got != want {
		t.Errorf("phases %s, want %s", got, want)
	}
}

// Fault matrix, row 30: the key is deleted under a living lease.
func TestRegistrarPutsDeletedKeyBack(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	k := prefill("10.0.0.1:8100")
	r := register(t, cli, options(t, k))
	r.Set(instance.Record{ID: "A"})
	waitPhase(t, r, discovery.Registered)
	before := r.Status()
	del(t, cli, layout(t).Instance(k))
	testkit.Eventually(t, soon, func() error {
		if raw := rawKey(t, cli, k); raw == nil || raw.Lease != before.LeaseID {
			return fmt.Errorf("%+v", raw)
		}
		return nil
	})
}

// An operator's removal wins over the agent until it is lifted.
func TestRegistrarHonoursRemoval(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	store := discovery.NewStore(cli, layout(t), "test")
	k := prefill("10.0.0.1:8100")
	r := register(t, cli, options(t, k))
	r.Set(instance.Record{ID: "A"})
	waitPhase(t, r, discovery.Registered)
	if existed, err := store.Remove(t.Context(), k, "broken"); err != nil || !existed {
		t.Fatal(existed, err)
	}
	waitPhase(t, r, discovery.Overridden)
	r.Set(instance.Record{ID: "A", State: instance.Down}) // whatever it wants now
	lost := r.Status().Renewals
	testkit.Eventually(t, soon, func() error {
		if s := r.Status(); s.Renewals < lost+2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if raw := rawKey(t, cli, k); raw != nil {
		t.Fatalf("it came back: %+v", raw)
	}
	if removed, err := store.Allow(t.Context(), k, "mended"); err != nil || !removed {
		t.Fatal(removed, err)
	}
	waitPhase(t, r, discovery.Registered)
	if removed, err := store.Allow(t.Context(), k, "again"); err != nil || removed {
		t.Errorf("allowed twice: %v, %v", removed, err)
	}
	log, err := store.AuditLog(t.Context(), 0)
	if err != nil || len(log) != 2 || log[0].What != "allow" {
		t.Errorf("the trail is %+v, %v", log, err)
	}
}

// Fault matrix, row 21: two agents for one address.
func TestRegistrarTwoAgents(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	t.Run("on two hosts", func(t *testing.T) {
		t.Parallel()
		k := prefill("10.0.0.1:8100")
		first := register(t, cli, options(t, k))
		first.Set(instance.Record{ID: "A"})
		waitPhase(t, first, discovery.Registered)
		before := rawKey(t, cli, k)
		o := options(t, k)
		o.HostID = "host-2"
		second := register(t, cli, o)
		second.Set(instance.Record{ID: "B"})
		waitPhase(t, second, discovery.Conflict)
		if after := rawKey(t, cli, k); string(after.Value) != string(before.Value) || after.ModRevision != before.ModRevision {
			t.Fatalf("before %+v, after %+v", before, after)
		}
		if a, b := first.Status().Conflicts, second.Status().Conflicts; a != 0 || b != 1 {
			t.Errorf("conflicts counted: %d by the first, %d by the second", a, b)
		}
		// When the first goes, the second gets it.
		if err := first.Revoke(t.Context()); err != nil {
			t.Fatal(err)
		}
		waitPhase(t, second, discovery.Registered)
	})
	t.Run("on one host the later one keeps it", func(t *testing.T) {
		t.Parallel()
		k := prefill("10.0.0.2:8100")
		first := register(t, cli, options(t, k))
		first.Set(instance.Record{ID: "A"})
		waitPhase(t, first, discovery.Registered)
		second := register(t, cli, options(t, k))
		second.Set(instance.Record{ID: "B"})
		waitPhase(t, second, discovery.Registered)
		waitPhase(t, first, discovery.Conflict)
		if raw := rawKey(t, cli, k); raw.Lease != second.Status().LeaseID || raw.Version != 2 {
			t.Fatalf("%+v", raw)
		}
	})
}

// Two hosts that start at the same moment: one gets the key, and it was
// written once.
func TestRegistrarStartRace(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	for round := range 10 {
		k := decode(fmt.Sprintf("10.0.0.1:%d", 8200+round))
		const n = 4
		rs := make([]*discovery.Registrar, n)
		for i := range rs {
			o := options(t, k)
			o.HostID = fmt.Sprintf("host-%d", i)
			rs[i] = register(t, cli, o)
		}
		for i, r := range rs {
			r.Set(instance.Record{ID: fmt.Sprintf("id-%d", i)})
		}
		testkit.Eventually(t, soon, func() error {
			won, lost := 0, 0
			for _, r := range rs {
				switch r.Status().Phase {
				case discovery.Registered:
					won++
				case discovery.Conflict:
					lost++
				}
			}
			if won != 1 || lost != n-1 {
				return fmt.Errorf("%d registered, %d in conflict", won, lost)
			}
			return nil
		})
		if raw := rawKey(t, cli, k); raw.Version != 1 {
			t.Fatalf("written %d times: %+v", raw.Version, raw)
		}
	}
}

func TestRegistrarNewIncarnation(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	k := prefill("10.0.0.1:8100")
	r := register(t, cli, options(t, k))
	r.Set(instance.Record{ID: "A"})
	waitPhase(t, r, discovery.Registered)
	r.Set(instance.Record{ID: "B"})
	testkit.Eventually(t, soon, func() error {
		if raw := rawKey(t, cli, k); !strings.Contains(string(raw.Value), `"id":"B"`) || raw.Lease != r.Status().LeaseID {
			return fmt.Errorf("%s", raw.Value)
		}
		return nil
	})
	if s := r.Status(); s.Registrations != 1 {
		t.Fatalf("%+v", s)
	}
}

func TestRegistrarEnds(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	k := prefill("10.0.0.1:8100")

	// The end of its context leaves the key.
	r := discovery.NewRegistrar(cli, options(t, k))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.Set(instance.Record{ID: "A"})
	waitPhase(t, r, discovery.Registered)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if rawKey(t, cli, k) == nil {
		t.Fatal("the key went with the context")
	}
	// Revoke takes it away, also after Run, and twice does no harm.
	for range 2 {
		if err := r.Revoke(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if raw := rawKey(t, cli, k); raw != nil || r.Status().Phase != discovery.Idle {
		t.Fatalf("%+v %+v", raw, r.Status())
	}
	// A revoked one does not come back.
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Revoke before Run.
	if err := discovery.NewRegistrar(cli, options(t, k)).Revoke(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestRegistrarRefusesWhatNobodyCouldRead(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	k := prefill("10.0.0.1:8100")
	r := register(t, cli, options(t, k))
	r.Set(instance.Record{ID: "A", Address: "10.0.0.1:9"})
	testkit.Eventually(t, soon, func() error {
		if s := r.Status(); s.Phase != discovery.Registering || !strings.Contains(s.Err, "port") {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	put(t, cli, layout(t).Schema(), `{"v":2}`)
	r.Set(instance.Record{ID: "A"})
	testkit.Eventually(t, soon, func() error {
		if s := r.Status(); !strings.Contains(s.Err, "upgrade") {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	put(t, cli, layout(t).Schema(), `{"v":1,"more":true}`)
	waitPhase(t, r, discovery.Registered)
}
