package watch_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestBareRegistration_Verified(t *testing.T) {
	t.Parallel()
	prober := members.NewProber()
	cli, l, w := following(t, members.Probing(t, prober, ""))
	for i, value := range []string{"", "\n", "127.0.0.1:%d", "http://localhost:%d/", `{"v":1}`} {
		port := 8100 + i
		k := members.Prefill(fmt.Sprintf("127.0.0.1:%d", port))
		if strings.Contains(value, "%d") {
			value = fmt.Sprintf(value, port)
		}
		members.Put(t, cli, l.Instance(k), value)
		in := members.WaitFor(t, w, k, members.HasView(instance.Unverified))
		assert.True(t, !in.Usable() && in.Reason != "", "%q: %+v", value, in)
		members.WaitFor(t, w, k, func(in *instance.Instance) error { // the error of the probe
			if !strings.Contains(in.Reason, "connection refused") {
				return fmt.Errorf("reason is %q", in.Reason)
			}
			return nil
		})
		prober.Answer(k.Address, "org/model")
		in = members.WaitFor(t, w, k, members.Usable)
		if !in.Verified || in.Record.Models[0] != "org/model" || in.Record.MaxModelLen != 4096 || in.Record.Version != "0.12.0" || in.Reason != "" {
			t.Errorf("%q: %+v", value, in)
		}
	}
	// A verified instance is not probed again.
	n := prober.Count("127.0.0.1:8100")
	k := members.Prefill("127.0.0.1:9000")
	members.Put(t, cli, l.Instance(k), "")
	testkit.Until(t, members.Soon, func() int { return prober.Count(k.Address) }, func(c int) bool { return c >= 5 })
	again := prober.Count("127.0.0.1:8100")
	assert.Equal(t, n, again, "a verified instance was asked %d times more", again-n)
}

// Facts are valid for one incarnation of the engine only.
func TestNewIncarnation_Reverified(t *testing.T) {
	t.Parallel()
	prober := members.NewProber()
	cli, l, w := following(t, members.Probing(t, prober, ""))
	k := members.Decode("127.0.0.1:8200")
	prober.Answer(k.Address, "one")
	members.Put(t, cli, l.Instance(k), `{"id":"A"}`)
	members.WaitFor(t, w, k, members.Usable)
	// The same incarnation, written again, stays verified.
	n := prober.Count(k.Address)
	rev := members.Put(t, cli, l.Instance(k), `{"id":"A","weight":5}`)
	if in := members.WaitFor(t, w, k, atRevision(rev)); !in.Usable() {
		t.Fatalf("%+v", in)
	}
	again := prober.Count(k.Address)
	assert.Equal(t, n, again, "asked %d times more", again-n)
	prober.Answer(k.Address, "two")
	members.Put(t, cli, l.Instance(k), `{"id":"B"}`)
	in := members.WaitFor(t, w, k, func(in *instance.Instance) error {
		if in.Record.ID != "B" {
			return fmt.Errorf("id %s", in.Record.ID)
		}
		return members.Usable(in)
	})
	require.Equal(t, "two", in.Record.Models[0], in.Record)
	// A bare record that was deleted and put again is another incarnation, too.
	k = members.Decode("127.0.0.1:8201")
	prober.Answer(k.Address, "one")
	members.Put(t, cli, l.Instance(k), "")
	first := members.WaitFor(t, w, k, members.Usable)
	prober.Answer(k.Address, "three")
	_, err := cli.Txn(t.Context()).Then(clientv3.OpDelete(l.Instance(k))).Commit()
	require.NoError(t, err)
	members.Put(t, cli, l.Instance(k), "")
	in = members.WaitFor(t, w, k, func(in *instance.Instance) error {
		if in.Incarnation() == first.Incarnation() {
			return fmt.Errorf("still the first")
		}
		return members.Usable(in)
	})
	require.Equal(t, "three", in.Record.Models[0], in.Record)
}

func TestModelMustMatch(t *testing.T) {
	t.Parallel()
	prober := members.NewProber()
	cli, l, w := following(t, members.Probing(t, prober, "Qwen/Qwen2.5-7B"))
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
		k := members.Prefill(fmt.Sprintf("127.0.0.1:%d", 8100+i))
		if len(c.facts.Models) > 0 {
			prober.Set(k.Address, c.facts)
		}
		members.Put(t, cli, l.Instance(k), c.record, clientv3.WithLease(members.Lease(t, cli, 600)))
		if c.ok {
			members.WaitFor(t, w, k, members.Usable)
			continue
		}
		in := members.WaitFor(t, w, k, members.HasView(instance.Rejected))
		if !strings.Contains(in.Reason, "not Qwen/Qwen2.5-7B") || strings.Contains(in.Reason, "\x1b") || in.Usable() {
			t.Errorf("%s: %+v", c.name, in)
		}
		// It is probed again, and accepted once it serves the correct model.
		prober.Answer(k.Address, "Qwen/Qwen2.5-7B")
		members.WaitFor(t, w, k, members.Usable)
	}
	// Without a prober a wrong model is rejected at once.
	o := members.WatcherOptions(t)
	o.Model = "other"
	blind := members.Watch(t, cli, o)
	members.WaitFor(t, blind, members.Prefill("127.0.0.1:8100"), members.HasView(instance.Rejected))
	members.WaitFor(t, blind, members.Prefill("127.0.0.1:8104"), members.HasView(instance.Unverified))
}

func TestProbesAreBounded(t *testing.T) {
	t.Parallel()
	cli, l, prober := etcdtest.Start(t).Client(t), members.Layout(t), members.NewProber()
	prober.Hold = make(chan struct{})
	const n = 200
	for i := range n {
		k := members.Prefill(fmt.Sprintf("127.0.0.1:%d", 8100+i))
		prober.Answer(k.Address, "m")
		members.Put(t, cli, l.Instance(k), "")
	}
	o := members.Probing(t, prober, "")
	o.ProbeTimeout = members.Soon
	w := members.Watch(t, cli, o)
	testkit.Eventually(t, members.Soon, func() error {
		prober.Mu.Lock()
		defer prober.Mu.Unlock()
		if prober.Now != 64 {
			return fmt.Errorf("%d probes under way", prober.Now)
		}
		return nil
	})
	close(prober.Hold)
	testkit.EventuallyEqual(t, members.Soon, func() int { return len(w.Snapshot().Usable(instance.Prefill)) }, n)
	prober.Mu.Lock()
	defer prober.Mu.Unlock()
	assert.LessOrEqual(t, prober.Most, 64, "%d probes at one time", prober.Most)
}

func TestCheckRefusesRecords(t *testing.T) {
	t.Parallel()
	prober := members.NewProber()
	o := members.Probing(t, prober, "")
	o.Check = func(_ instance.Key, rec instance.Record) error {
		if rec.Connector == "carrier\x1bpigeon" {
			return fmt.Errorf("unknown connector %q", rec.Connector)
		}
		return nil
	}
	cli, l, w := following(t, o)
	k := members.Prefill("10.0.0.1:8100")
	members.Put(t, cli, l.Instance(k), `{"models":["m"],"connector":"carrier\u001bpigeon"}`)
	in := members.WaitFor(t, w, k, members.HasView(instance.Rejected))
	if in.Usable() || !strings.Contains(in.Reason, "unknown connector") || strings.Contains(in.Reason, "\x1b") {
		t.Fatalf("%+v", in)
	}
	members.Put(t, cli, l.Instance(k), `{"models":["m"],"connector":"nixl"}`)
	members.WaitFor(t, w, k, members.Usable)
	n := prober.Count(k.Address)
	assert.Equal(t, 0, n, "it was asked %d times", n)
}

// A list of models that was read later is in the next snapshot; an unchanged list is not published.
func TestObserveModels(t *testing.T) {
	t.Parallel()
	cli, l, w := following(t, members.Probing(t, members.NewProber(), "base"))
	k := members.Decode("127.0.0.1:8200")
	members.Put(t, cli, l.Instance(k), `{"models":["base"]}`)
	in := members.WaitFor(t, w, k, members.Usable)
	lists := func(want ...string) func(*instance.Instance) error {
		return members.Is(func(in *instance.Instance) bool { return slices.Equal(in.Record.Models, want) })
	}
	w.ObserveModels(t.Context(), in, instance.Facts{Models: []string{"base", "late"}})
	in = members.WaitFor(t, w, k, lists("base", "late"))
	require.True(t, in.Usable())
	assert.True(t, in.ModelsRead)
	before := w.Snapshot()
	w.ObserveModels(t.Context(), in, instance.Facts{Models: []string{"base", "late"}})
	w.ObserveModels(t.Context(), &instance.Instance{Key: members.Decode("127.0.0.1:9")}, instance.Facts{Models: []string{"x"}})
	members.Put(t, cli, l.Instance(k), `{"models":["base"],"weight":7}`)
	in = members.WaitFor(t, w, k, members.Is(func(in *instance.Instance) bool { return in.Weight() == 7 }))
	if after := w.Snapshot(); after.Revision != before.Revision+1 || !in.ServesModel("late") {
		t.Errorf("revision %d after %d: %+v", after.Revision, before.Revision, in)
	}
	w.ObserveModels(t.Context(), in, instance.Facts{Models: []string{"base"}})
	members.WaitFor(t, w, k, lists("base"))
	members.Del(t, cli, l.Instance(k))
	members.Put(t, cli, l.Instance(k), `{"models":["base"]}`)
	members.WaitFor(t, w, k, lists("base"))
}
