package discovery_test

import (
	"fmt"
	"strings"
	"testing"

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

func TestCheckRefusesRecords(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l, prober := etcd.Client(t), layout(t), newProber()
	o := probing(t, prober, "")
	o.Check = func(_ instance.Key, rec instance.Record) error {
		if rec.Connector == "carrier\x1bpigeon" {
			return fmt.Errorf("unknown connector %q", rec.Connector)
		}
		return nil
	}
	w := watch(t, cli, o)
	k := prefill("10.0.0.1:8100")
	put(t, cli, l.Instance(k), `{"models":["m"],"connector":"carrier\u001bpigeon"}`)
	in := waitFor(t, w, k, hasView(instance.Rejected))
	if in.Usable() || !strings.Contains(in.Reason, "unknown connector") || strings.Contains(in.Reason, "\x1b") {
		t.Fatalf("%+v", in)
	}
	put(t, cli, l.Instance(k), `{"models":["m"],"connector":"nixl"}`)
	waitFor(t, w, k, usable)
	if n := prober.count(k.Address); n != 0 {
		t.Errorf("it was asked %d times", n)
	}
}
