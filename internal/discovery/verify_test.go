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

func probing(t testing.TB, p discovery.Prober, model string) discovery.WatcherOptions {
	o := quick(t)
	o.Prober, o.Model = p, model
	return o
}

func TestBareRegistrationIsVerified(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l, prober := etcd.Client(t), layout(t), newProber()
	w := watch(t, cli, probing(t, prober, ""))
	waitReady(t, w)
	for i, value := range []string{"", "\n", "127.0.0.1:%d", "http://localhost:%d/", `{"v":1}`} {
		port := 8100 + i
		k := prefill(fmt.Sprintf("127.0.0.1:%d", port))
		if strings.Contains(value, "%d") {
			value = fmt.Sprintf(value, port)
		}
		put(t, cli, l.Instance(k), value)
		in := waitFor(t, w, k, hasView(instance.Unverified))
		if in.Usable() || in.Reason == "" {
			t.Errorf("%q: %+v", value, in)
		}
		waitFor(t, w, k, func(in *instance.Instance) error { // the probe's own words
			if !strings.Contains(in.Reason, "connection refused") {
				return fmt.Errorf("reason is %q", in.Reason)
			}
			return nil
		})
		prober.answer(k.Address, "org/model")
		in = waitFor(t, w, k, usable)
		if !in.Verified || in.Record.Models[0] != "org/model" || in.Record.MaxModelLen != 4096 || in.Record.Version != "0.12.0" || in.Reason != "" {
			t.Errorf("%q: %+v", value, in)
		}
		if in.Bare != !strings.HasPrefix(value, "{") {
			t.Errorf("%q: bare is %t", value, in.Bare)
		}
	}
	// Whoever is verified is asked no more.
	n := prober.count("127.0.0.1:8100")
	k := prefill("127.0.0.1:9000")
	put(t, cli, l.Instance(k), "")
	testkit.Eventually(t, soon, func() error {
		if c := prober.count(k.Address); c < 5 {
			return fmt.Errorf("%d probes", c)
		}
		return nil
	})
	if again := prober.count("127.0.0.1:8100"); again != n {
		t.Errorf("a verified instance was asked %d times more", again-n)
	}
}

// What was found out counts for one life of the engine only.
func TestNewIncarnationIsVerifiedAgain(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l, prober := etcd.Client(t), layout(t), newProber()
	w := watch(t, cli, probing(t, prober, ""))
	k := decode("127.0.0.1:8200")
	prober.answer(k.Address, "one")
	put(t, cli, l.Instance(k), `{"id":"A"}`)
	waitFor(t, w, k, usable)
	// The same life, written again: stays verified.
	n := prober.count(k.Address)
	rev := put(t, cli, l.Instance(k), `{"id":"A","weight":5}`)
	if in := waitFor(t, w, k, atRevision(rev)); !in.Usable() {
		t.Fatalf("%+v", in)
	}
	if again := prober.count(k.Address); again != n {
		t.Errorf("asked %d times more", again-n)
	}
	prober.answer(k.Address, "two")
	put(t, cli, l.Instance(k), `{"id":"B"}`)
	in := waitFor(t, w, k, func(in *instance.Instance) error {
		if in.Record.ID != "B" {
			return fmt.Errorf("id %s", in.Record.ID)
		}
		return usable(in)
	})
	if in.Record.Models[0] != "two" {
		t.Fatalf("%+v", in.Record)
	}
	// A bare record that was deleted and put again is another life too.
	k = decode("127.0.0.1:8201")
	prober.answer(k.Address, "one")
	put(t, cli, l.Instance(k), "")
	first := waitFor(t, w, k, usable)
	prober.answer(k.Address, "three")
	if _, err := cli.Txn(t.Context()).Then(clientv3.OpDelete(l.Instance(k))).Commit(); err != nil {
		t.Fatal(err)
	}
	put(t, cli, l.Instance(k), "")
	in = waitFor(t, w, k, func(in *instance.Instance) error {
		if in.Incarnation() == first.Incarnation() {
			return fmt.Errorf("still the first")
		}
		return usable(in)
	})
	if in.Record.Models[0] != "three" {
		t.Fatalf("%+v", in.Record)
	}
}

func TestModelMustMatch(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l, prober := etcd.Client(t), layout(t), newProber()
	w := watch(t, cli, probing(t, prober, "Qwen/Qwen2.5-7B"))
	for i, c := range []struct {
		name   string
		record string
		facts  instance.Facts
		ok     bool
	}{
		{"listed", `{"models":["Qwen/Qwen2.5-7B"]}`, instance.Facts{}, true},
		{"listed by its last part", `{"models":["x","/models/Qwen2.5-7B/"]}`, instance.Facts{}, true},
		{"listed another", `{"models":["llama"]}`, instance.Facts{Models: []string{"llama"}}, false},
		{"listed by another name, root fits", `{"models":["chat"]}`, instance.Facts{Models: []string{"chat"}, Roots: []string{"/m/Qwen2.5-7B"}}, true},
		{"asked", ``, instance.Facts{Models: []string{"Qwen2.5-7B"}}, true},
		{"asked, root fits", ``, instance.Facts{Models: []string{"chat"}, Roots: []string{"Qwen/Qwen2.5-7B"}}, true},
		{"asked, another", ``, instance.Facts{Models: []string{"llama\x1b"}, Roots: []string{""}}, false},
		{"a longer name", ``, instance.Facts{Models: []string{"Qwen2.5-7B-Instruct"}}, false},
	} {
		k := prefill(fmt.Sprintf("127.0.0.1:%d", 8100+i))
		if len(c.facts.Models) > 0 {
			prober.set(k.Address, c.facts)
		}
		put(t, cli, l.Instance(k), c.record, clientv3.WithLease(lease(t, cli, 600)))
		if c.ok {
			waitFor(t, w, k, usable)
			continue
		}
		in := waitFor(t, w, k, hasView(instance.Rejected))
		if !strings.Contains(in.Reason, "not Qwen/Qwen2.5-7B") || strings.Contains(in.Reason, "\x1b") || in.Usable() {
			t.Errorf("%s: %+v", c.name, in)
		}
		// It is asked again, and accepted once it serves the right one.
		prober.answer(k.Address, "Qwen/Qwen2.5-7B")
		waitFor(t, w, k, usable)
	}
	// Without a prober a wrong model is rejected at once.
	o := quick(t)
	o.Model = "other"
	blind := watch(t, cli, o)
	waitFor(t, blind, prefill("127.0.0.1:8100"), hasView(instance.Rejected))
	waitFor(t, blind, prefill("127.0.0.1:8104"), hasView(instance.Unverified))
}

func TestProbesAreBounded(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l, prober := etcd.Client(t), layout(t), newProber()
	prober.hold = make(chan struct{})
	const n = 200
	for i := range n {
		k := prefill(fmt.Sprintf("127.0.0.1:%d", 8100+i))
		prober.answer(k.Address, "m")
		put(t, cli, l.Instance(k), "")
	}
	o := probing(t, prober, "")
	o.ProbeTimeout = soon
	w := watch(t, cli, o)
	testkit.Eventually(t, soon, func() error {
		prober.mu.Lock()
		defer prober.mu.Unlock()
		if prober.now != 64 {
			return fmt.Errorf("%d probes under way", prober.now)
		}
		return nil
	})
	close(prober.hold)
	testkit.Eventually(t, soon, func() error {
		if got := len(w.Snapshot().Usable(instance.Prefill)); got != n {
			return fmt.Errorf("%d usable", got)
		}
		return nil
	})
	prober.mu.Lock()
	defer prober.mu.Unlock()
	if prober.most > 64 {
		t.Errorf("%d probes at one time", prober.most)
	}
}

// Must show 3: five proxies see the same pending add verify; one promotes it.
func TestFivePromotersOneWins(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	l, prober := layout(t), newProber()
	cli := etcd.Client(t)
	store := discovery.NewStore(cli, l, "operator")
	const proxies, rounds = 5, 10
	watchers := make([]*discovery.Watcher, proxies)
	for i := range watchers {
		o := probing(t, prober, "m")
		o.Actor = fmt.Sprintf("proxy-%d", i)
		watchers[i] = watch(t, etcd.Client(t), o)
		waitReady(t, watchers[i])
	}
	for round := range rounds {
		k := prefill(fmt.Sprintf("127.0.0.1:%d", 8100+round))
		outcome, err := store.AddPending(t.Context(), k, discovery.PendingAdd{Connector: "nixl"}, 0, "more load")
		if err != nil || outcome != discovery.Waiting {
			t.Fatal(outcome, err)
		}
		for _, w := range watchers {
			testkit.Eventually(t, soon, func() error {
				ps := pendings(w.Snapshot())
				if len(ps) != 1 || ps[0].Key != k || !strings.Contains(ps[0].Reason, "refused") {
					return fmt.Errorf("%d pending", len(ps))
				}
				return nil
			})
		}
		prober.answer(k.Address, "m")
		for _, w := range watchers {
			in := waitFor(t, w, k, usable)
			if !in.Static() || in.Version != 1 || in.Record.Source != "admin" || in.Record.Connector != "nixl" || in.Record.Models[0] != "m" {
				t.Fatalf("%+v", in)
			}
			testkit.Eventually(t, soon, func() error {
				if n := len(pendings(w.Snapshot())); n != 0 {
					return fmt.Errorf("%d still pending", n)
				}
				return nil
			})
		}
	}
	log, err := store.AuditLog(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	promoted := map[string]int{}
	for _, e := range log {
		if e.What == "promote" {
			promoted[e.Address]++
		}
	}
	if len(promoted) != rounds {
		t.Errorf("%d promotions in the audit log", len(promoted))
	}
	for address, n := range promoted {
		if n != 1 {
			t.Errorf("%s was promoted %d times", address, n)
		}
	}
	// The counters agree once every asker has said its word.
	testkit.Eventually(t, soon, func() error {
		total := int64(0)
		for _, w := range watchers {
			total += w.Status().Promotions
		}
		if total != rounds {
			return fmt.Errorf("%d promotions counted, want %d", total, rounds)
		}
		return nil
	})
}

func TestPendingThatCannotBePromoted(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l, prober := etcd.Client(t), layout(t), newProber()
	store := discovery.NewStore(cli, l, "operator")
	w := watch(t, cli, probing(t, prober, ""))
	waitReady(t, w)
	reason := func(k instance.Key, says string) {
		t.Helper()
		testkit.Eventually(t, soon, func() error {
			for _, p := range pendings(w.Snapshot()) {
				if p.Key == k && strings.Contains(p.Reason, says) {
					return nil
				}
			}
			return fmt.Errorf("no pending %s that says %q", k, says)
		})
	}
	// The wrong model.
	k := prefill("127.0.0.1:8100")
	prober.answer(k.Address, "llama")
	if _, err := store.AddPending(t.Context(), k, discovery.PendingAdd{Model: "qwen"}, 0, ""); err != nil {
		t.Fatal(err)
	}
	reason(k, "serves llama, not qwen")
	prober.answer(k.Address, "qwen")
	waitFor(t, w, k, usable)

	// Removed meanwhile, by hand.
	k = prefill("127.0.0.1:8101")
	if _, err := store.AddPending(t.Context(), k, discovery.PendingAdd{}, 0, ""); err != nil {
		t.Fatal(err)
	}
	reason(k, "refused")
	put(t, cli, l.Override(k), `{"v":1,"state":"removed"}`)
	reason(k, "removed")
	prober.answer(k.Address, "m")
	del(t, cli, l.Override(k))
	waitFor(t, w, k, usable)

	// Registered meanwhile by its agent: the wait ends, the record stays.
	k = prefill("127.0.0.1:8102")
	if _, err := store.AddPending(t.Context(), k, discovery.PendingAdd{}, 0, ""); err != nil {
		t.Fatal(err)
	}
	reason(k, "refused")
	put(t, cli, l.Instance(k), ready, clientv3.WithLease(lease(t, cli, 600)))
	testkit.Eventually(t, soon, func() error {
		if n := len(pendings(w.Snapshot())); n != 0 {
			return fmt.Errorf("%d pending", n)
		}
		return nil
	})
	if in := waitFor(t, w, k, usable); in.Static() || in.Version != 1 {
		t.Fatalf("%+v", in)
	}

	// A value that cannot be read, and a limit in time.
	put(t, cli, l.Pending(prefill("127.0.0.1:8103")), `{"record":{"weight":-1}}`)
	reason(prefill("127.0.0.1:8103"), "weight")
	put(t, cli, l.Root()+"pending/prefill/localhost:8104", ``)
	reason(prefill("127.0.0.1:8104"), "must be spelled")
	k = prefill("127.0.0.1:8105")
	if _, err := store.AddPending(t.Context(), k, discovery.PendingAdd{}, time.Second, ""); err != nil {
		t.Fatal(err)
	}
	reason(k, "refused")
	testkit.Eventually(t, soon, func() error {
		for _, p := range pendings(w.Snapshot()) {
			if p.Key == k {
				return fmt.Errorf("still waits")
			}
		}
		return nil
	})
}

// A removal in the very moment of the promotion wins or comes after it; the
// instance never stays while the removal stands.
func TestPromotionAndRemovalRace(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	store := discovery.NewStore(cli, l, "operator")
	other := discovery.NewStore(etcd.Client(t), l, "proxy")
	for i := range 30 {
		k := decode(fmt.Sprintf("127.0.0.1:%d", 8200+i))
		if _, err := store.AddPending(t.Context(), k, discovery.PendingAdd{}, 0, ""); err != nil {
			t.Fatal(err)
		}
		snap, err := store.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := other.Promote(context.Background(), pendings(snap)[0], instance.Record{Models: []string{"m"}}); err != nil {
				t.Error(err)
			}
		})
		if existed, err := store.Remove(t.Context(), k, ""); err != nil || !existed {
			t.Fatal(existed, err)
		}
		wg.Wait()
		if raw := rawKey(t, cli, k); raw != nil {
			t.Fatalf("removed, and there: %+v", raw)
		}
	}
}

// Whatever an operator does by hand in the moment of a promotion: what came
// first in etcd's order decides.
func TestPromotionHonoursWhatCameFirst(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	store := discovery.NewStore(etcd.Client(t), l, "proxy")
	rec := instance.Record{Models: []string{"m"}}
	add := func(k instance.Key) *instance.Instance {
		t.Helper()
		put(t, cli, l.Pending(k), "")
		snap, err := store.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pendings(snap) {
			if p.Key == k {
				return p
			}
		}
		t.Fatal("no pending add")
		return nil
	}
	k := prefill("127.0.0.1:1")
	p := add(k)
	put(t, cli, l.Override(k), `{"v":1,"state":"removed"}`)
	if won, err := store.Promote(t.Context(), p, rec); won || err != nil {
		t.Fatalf("promoted against a removal: %t, %v", won, err)
	}
	put(t, cli, l.Override(k), `{"v":1,"state":"drain"}`)
	put(t, cli, l.Pending(k), " ")
	if won, err := store.Promote(t.Context(), p, rec); won || err != nil {
		t.Fatalf("promoted another pending add: %t, %v", won, err)
	}
	if won, err := store.Promote(t.Context(), add(k), rec); !won || err != nil {
		t.Fatalf("a drained one may be added: %t, %v", won, err)
	}
	if won, err := store.Promote(t.Context(), add(k), rec); won || err != nil {
		t.Fatalf("promoted over a record: %t, %v", won, err)
	}
	for i, c := range []struct {
		name string
		do   func(k instance.Key) clientv3.Op
	}{
		{"removal", func(k instance.Key) clientv3.Op { return clientv3.OpPut(l.Override(k), `{"v":1,"state":"removed"}`) }},
		{"end of the wait", func(k instance.Key) clientv3.Op { return clientv3.OpDelete(l.Pending(k)) }},
	} {
		won, lost := 0, 0
		for round := range 150 {
			k := decode(fmt.Sprintf("127.0.0.1:%d", 10000+1000*i+round))
			p := add(k)
			var byHand int64
			var wg sync.WaitGroup
			wg.Go(func() {
				pause := time.NewTimer(time.Duration(round) * 20 * time.Microsecond) // sweep over the moment
				<-pause.C
				resp, err := cli.Do(context.Background(), c.do(k))
				if err != nil {
					t.Error(err)
					return
				}
				if r := resp.Put(); r != nil {
					byHand = r.Header.Revision
				} else if r := resp.Del(); r.Deleted > 0 {
					byHand = r.Header.Revision
				}
			})
			if _, err := store.Promote(t.Context(), p, rec); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			switch raw := rawKey(t, cli, k); {
			case raw == nil:
				lost++
			case byHand != 0 && raw.CreateRevision > byHand:
				t.Fatalf("%s at revision %d, promoted at %d", c.name, byHand, raw.CreateRevision)
			default:
				won++
			}
		}
		t.Logf("%s: promotion came first %d times, second %d times", c.name, won, lost)
	}
}
