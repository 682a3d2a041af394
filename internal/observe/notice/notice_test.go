package notice_test

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/notice"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestMain(m *testing.M) { leak.Main(m) }

func in(role instance.Role, address string, change ...func(*instance.Instance)) *instance.Instance {
	i := &instance.Instance{
		Key: instance.Key{Role: role, Address: address}, Verified: true,
		Record: instance.Record{Models: []string{"m"}, State: instance.Ready, Connector: "nixl", ID: "first"},
	}
	for _, f := range change {
		f(i)
	}
	return i
}

// fleet is a membership that the test changes, and the counts of its proxy.
type fleet struct {
	snapshot *instance.Snapshot
	out      map[string]bool // ejected addresses
	hung     map[string]bool // hung ones among them
	counts   *notice.Counts
	// byDefault is the connector of records that name none.
	byDefault string
}

func newFleet(list ...*instance.Instance) *fleet {
	f := &fleet{snapshot: instance.NewSnapshot(1, list), out: map[string]bool{}, hung: map[string]bool{}, byDefault: "plain"}
	f.counts = notice.NewCounts(func() *instance.Snapshot { return f.snapshot })
	return f
}

func (f *fleet) words() string { return strings.Join(f.view().Texts(), "\n") }

func (f *fleet) view() notice.View {
	return notice.View{
		Snapshot: f.snapshot, Counts: f.counts,
		Opinion: f.opinion, Fallback: true,
		PairKey: func(i *instance.Instance) connector.PairKey {
			k := connector.PairKey{Connector: cmp.Or(i.Record.Connector, f.byDefault), Build: i.Record.Version}
			if k.Connector == "p2p" {
				k.Blocks = i.Record.BlockSize
			}
			return k
		},
	}
}

// opinion returns the proxy's opinion: an ejected instance accepts no connections.
func (f *fleet) opinion(k instance.Key) instance.Opinion {
	if f.hung[k.Address] {
		return instance.Opinion{View: instance.Ejected, Reason: "hung: no request made progress for 6s"}
	}
	if f.out[k.Address] {
		return instance.Opinion{View: instance.Ejected, Reason: "connection refused"}
	}
	return instance.Opinion{}
}

func dialect(name string) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Record.Connector = name }
}

func build(version string) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Record.Version = version }
}

func models(names ...string) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Record.Models = names }
}

func blocks(size int) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Record.BlockSize = size }
}

func state(s instance.State) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Record.State = s }
}

func TestNotices_Membership(t *testing.T) {
	t.Parallel()
	const p, d = instance.Prefill, instance.Decode
	none := 0
	orphan := func(i *instance.Instance) { i.View = instance.Orphan }
	slow := func(i *instance.Instance) { i.Record.State, i.Record.Cause = instance.Down, instance.CauseSlow }
	for _, tc := range []struct {
		name string
		list []*instance.Instance
		out  []string
		want string
		// byDefault is the connector of records that name none; default plain.
		byDefault string
	}{
		{name: "an empty fleet", want: "no decode instance is registered: nothing is served"},
		{name: "all is well", list: []*instance.Instance{in(p, "a:1"), in(d, "b:1")}},
		{name: "decode alone is a choice", list: []*instance.Instance{in(d, "b:1")}},
		{name: "one of two is out", list: []*instance.Instance{in(p, "a:1"), in(p, "a:2"), in(d, "b:1")}, out: []string{"a:1"}},
		{name: "slow ones serve", list: []*instance.Instance{in(p, "a:1", slow), in(d, "b:1")}},
		{name: "another proxy's", list: []*instance.Instance{in(p, "a:1", func(i *instance.Instance) { i.View = instance.Elsewhere }), in(d, "b:1")}},
		{
			name: "used without their keys",
			list: []*instance.Instance{in(p, "a:1", orphan), in(p, "a:2", orphan, func(i *instance.Instance) { i.Intent = instance.Drain }), in(d, "b:1", orphan), in(d, "b:2")},
			want: "instances that are no longer registered are used while they answer: prefill/a:1, decode/b:1. Check that their agents run and reach etcd, or stop requests with pdctl drain --force",
		},
		{
			name: "no prefill is usable", list: []*instance.Instance{
				in(p, "a:1", state(instance.Draining)), in(p, "a:2"), in(p, "a:3"), in(p, "a:4", func(i *instance.Instance) { i.Record.Weight = &none }), in(d, "b:1"),
			},
			out:  []string{"a:2", "a:3"},
			want: "4 prefill instances are registered, but none can be used (2 ejected, 1 draining, 1 of weight 0): decode computes every prompt",
		},
		{
			name: "no decode is usable", list: []*instance.Instance{in(p, "a:1"), in(d, "b:1", func(i *instance.Instance) { i.Intent = instance.Cordon })},
			want: "1 decode instance is registered, but none can be used (1 cordoned): nothing is served",
		},
		{
			name: "no pair", list: []*instance.Instance{in(p, "a:1"), in(p, "a:2"), in(d, "b:1", dialect("mooncake"))},
			want: "2 prefill instances are unused: prefill speaks nixl, decode mooncake, and there is no pair of them",
		},
		{
			name: "no pair of one build", list: []*instance.Instance{in(p, "a:1", build("0.32")), in(p, "a:2", build("0.33")), in(d, "b:1", build("0.33"))},
			want: "1 prefill instance is unused: prefill speaks nixl of build 0.32, decode nixl of build 0.33, and there is no pair of them",
		},
		{
			name: "NIXL is asked as plain", list: []*instance.Instance{in(p, "a:1", dialect("plain"), func(i *instance.Instance) { i.Record.Transfer = instance.TransferNIXL }), in(d, "b:1", dialect("plain"))},
			want: "prefill a:1: its engine transfers KV caches by NIXL, but the proxy uses the connector plain: no cache is transferred, and decode computes each prompt again; set --connector nixl",
		},
		{
			name: "another model", list: []*instance.Instance{in(p, "a:1", models("m", "p")), in(d, "b:1", models("m", "d"))},
			want: "only prefill serves model p: requests that generate are refused\nno prefill instance serves model d: decode computes its prompts",
		},
		{name: "embeddings", list: []*instance.Instance{in(p, "a:1"), in(d, "b:1"), in(d, "b:2", models("e"), dialect(""))}},
		{name: "embeddings next to NIXL", list: []*instance.Instance{in(p, "a:1"), in(d, "b:1"), in(d, "b:2", models("e"), dialect(""))}, byDefault: "nixl"},
		{
			name: "another model with a default", list: []*instance.Instance{in(p, "a:1"), in(d, "b:1"), in(d, "b:2", models("d"), dialect(""))}, byDefault: "mooncake",
			want: "no prefill instance serves model d: decode computes its prompts",
		},
		// Block sizes matter if both roles report some and have none in common.
		{
			name: "blocks: different", list: []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1", blocks(32)), in(d, "d:2", blocks(64))},
			want: "prefill speaks nixl with KV blocks of 16 tokens, decode nixl with KV blocks of 32 tokens and nixl with KV blocks of 64 tokens: where both do not have the same size, a KV transfer may fail, and a shared pool is of no use",
		},
		{
			name: "blocks: of no pair", list: []*instance.Instance{in(p, "p:1", blocks(16), dialect("p2p")), in(d, "d:1", blocks(32), dialect("p2p"))},
			want: "1 prefill instance is unused: prefill speaks p2p with KV blocks of 16 tokens, decode p2p with KV blocks of 32 tokens, and there is no pair of them",
		},
		{name: "blocks: the same", list: []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1", blocks(16))}},
		{name: "blocks: one of two", list: []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1", blocks(16)), in(d, "d:2", blocks(32))}},
		{name: "blocks: decode reports none", list: []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1")}},
		{name: "blocks: prefill reports none", list: []*instance.Instance{in(p, "p:1"), in(d, "d:1", blocks(16))}},
		{name: "blocks: of another connector", list: []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1"), in(d, "d:2", blocks(32), dialect("plain"))}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(tc.list...)
			f.byDefault = cmp.Or(tc.byDefault, f.byDefault)
			for _, address := range tc.out {
				f.out[address] = true
			}
			assert.Equal(t, tc.want, f.words())
		})
	}
}

// An instance whose API server answers while its core hangs is named.
func TestView_NamesHungInstances(t *testing.T) {
	t.Parallel()
	f := newFleet(in(instance.Prefill, "a:1"), in(instance.Prefill, "a:2"), in(instance.Decode, "b:1"), in(instance.Decode, "b:2"))
	f.out["a:1"], f.out["b:2"], f.hung["b:2"] = true, true, true
	const want = "decode b:2 is ejected: hung: no request made progress for 6s. It returns when a trial request succeeds; if none does, restart its engine"
	assert.Equal(t, want, f.words())
}

// Refusals of the proxy's key and of certificates are reported until they are old or the instance has left.
func TestView_NamesRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(in(instance.Prefill, "a:1"), in(instance.Decode, "b:1"), in(instance.Decode, "b:2"))
		fail := func(role instance.Role, address string, class leg.Class) {
			f.counts.Failed(instance.Key{Role: role, Address: address}, class)
		}
		fail(instance.Decode, "b:2", leg.EngineKey)
		fail(instance.Decode, "b:1", leg.EngineKey)
		fail(instance.Prefill, "a:1", leg.Untrusted)
		fail(instance.Prefill, "a:1", leg.Lost)
		const key = "engines have refused the key of this proxy in the last 5 minutes: decode/b:1, decode/b:2. Correct --engine-api-key\n"
		const tls = "TLS with engines failed in the last 5 minutes: prefill/a:1. The log of this proxy has the reasons"
		assert.Equal(t, key+tls, f.words())
		f.snapshot = instance.NewSnapshot(2, f.snapshot.All()[:1])
		if got := f.words(); strings.Contains(got, "key of this proxy") || !strings.Contains(got, tls) {
			t.Errorf("after decode has left: %q", got)
		}
		time.Sleep(6 * time.Minute)
		assert.NotContains(t, f.words(), "TLS")
	})
}

// A proxy serves nothing if no decode instance is usable, or if no pair is usable and there is no fallback.
func TestNotServing(t *testing.T) {
	t.Parallel()
	const p, d = instance.Prefill, instance.Decode
	slow := func(i *instance.Instance) { i.Record.State, i.Record.Cause = instance.Down, instance.CauseSlow }
	dead := instance.Opinion{View: instance.Ejected, Reason: "connection refused"}
	failing := instance.Opinion{View: instance.Ejected, Reason: "3 failures", Reachable: true}
	for _, tc := range []struct {
		name    string
		list    []*instance.Instance
		out     map[string]instance.Opinion
		noPair  string // wanted without a fallback
		nothing string // wanted with a fallback
	}{
		{name: "a pair", list: []*instance.Instance{in(p, "a:1"), in(d, "b:1")}},
		{name: "one engine in both roles", list: []*instance.Instance{in(p, "a:1"), in(d, "a:1")}},
		{name: "failing ones are tried", list: []*instance.Instance{in(p, "a:1"), in(d, "b:1")}, out: map[string]instance.Opinion{"b:1": failing}},
		{name: "slow ones serve", list: []*instance.Instance{in(p, "a:1", slow), in(d, "b:1", slow)}},
		{
			name: "dead decode", list: []*instance.Instance{in(p, "a:1"), in(d, "b:1")}, out: map[string]instance.Opinion{"b:1": dead},
			noPair:  "1 decode instance is registered, but none can be used (1 ejected): nothing is served",
			nothing: "1 decode instance is registered, but none can be used (1 ejected): nothing is served",
		},
		{
			name: "dead prefill", list: []*instance.Instance{in(p, "a:1"), in(d, "b:1")}, out: map[string]instance.Opinion{"a:1": dead},
			noPair: "1 prefill instance is registered, but none can be used (1 ejected): nothing is served",
		},
		{
			name: "decode only", list: []*instance.Instance{in(d, "b:1")},
			noPair: "no prefill instance is registered: nothing is served",
		},
		{
			name: "no pair", list: []*instance.Instance{in(p, "a:1"), in(d, "b:1", dialect("mooncake"))},
			noPair: "no prefill instance can be paired with a decode instance, and --fallback is none: nothing is served",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			v := notice.View{
				Snapshot: instance.NewSnapshot(1, tc.list),
				Opinion:  func(k instance.Key) instance.Opinion { return tc.out[k.Address] },
				PairKey:  members.PairKey,
			}
			if got := v.NotServing(); got != tc.noPair || (got != "") != strings.HasSuffix(got, instance.NothingServed) {
				t.Errorf("without a fallback: %q, want %q", got, tc.noPair)
			}
			v.Fallback = true
			assert.Equal(t, tc.nothing, v.NotServing(), "with a fallback")
		})
	}
	assert.Contains(t, (notice.View{Snapshot: instance.NewSnapshot(0, nil)}).NotServing(), "has not been read yet")
}

func alone(reason string) *forward.Entry {
	return &forward.Entry{Route: flow.Route{Decode: "b:1", DecodeOnly: reason}}
}

// A notice reports consecutive decode-only requests until a pair serves one.
func TestNotices_DecodeOnlyRequests(t *testing.T) {
	t.Parallel()
	f := newFleet(in(instance.Prefill, "a:1"), in(instance.Decode, "b:1"))
	for range 4 {
		f.counts.Done(alone("n"))
	}
	f.counts.Done(&forward.Entry{Route: flow.Route{DecodeOnly: "n"}}) // no instance served it
	for range 9 {
		f.counts.Done(alone("small_uncached")) // because decode-only is faster
	}
	assert.Equal(t, "", f.words(), "after a few")
	for range 3 {
		f.counts.Done(alone("no_handover"))
	}
	f.counts.Done(alone("no_prefill")) // before the prefill instance was registered
	const want = "1 prefill instance is ready, but each of the last 7 requests was served by decode alone: 4 n (several answers to one prompt), 3 no_handover (prefill offered no KV transfer)"
	assert.Equal(t, want, f.words())
	f.counts.Done(&forward.Entry{Route: flow.Route{Prefill: "a:1", Decode: "b:1"}})
	assert.Equal(t, "", f.words(), "after a pair")
}

// A notice reports an instance whose connector transfers nothing, until it does or the
// engine restarts.
func TestNotices_NoTransfer(t *testing.T) {
	t.Parallel()
	bad, good, d := in(instance.Prefill, "10.0.0.1:8000"), in(instance.Prefill, "10.0.0.2:8000"), in(instance.Decode, "b:1")
	f := newFleet(bad, good, d)
	lose := func(i *instance.Instance, n int) {
		for range n {
			f.counts.Handed(i, false)
		}
	}
	lose(bad, 2)
	f.counts.Handed(good, true)
	assert.Equal(t, "", f.words(), "after two")
	lose(bad, 1)
	const want = "prefill 10.0.0.1:8000 (nixl) has sent no transfer params in its last 3 answers, and decode computes its prompts again: is its vLLM started with --kv-transfer-config?"
	assert.Equal(t, want, f.words())
	f.counts.Handed(bad, true)
	assert.Equal(t, "", f.words(), "handed over")
	lose(bad, 3)
	next := in(instance.Prefill, "10.0.0.1:8000", func(i *instance.Instance) { i.Record.ID = "second" })
	f.snapshot = instance.NewSnapshot(2, []*instance.Instance{next, good, d})
	assert.Equal(t, "", f.words(), "in another life")
	lose(next, 3)
	assert.Equal(t, want, f.words(), "after the restart")
	f.snapshot = instance.NewSnapshot(3, []*instance.Instance{good, d})
	assert.Equal(t, "", f.words(), "after it left")
}

// The number and the length of notices are bounded.
func TestNotices_Bounded(t *testing.T) {
	t.Parallel()
	var list []*instance.Instance
	for i := range 50 {
		list = append(list, in(instance.Prefill, fmt.Sprintf("10.0.0.%d:1", i), models(strings.Repeat("p", 1000)+fmt.Sprint(i))))
	}
	f := newFleet(append(list, in(instance.Decode, "b:1", models("d")))...)
	for _, i := range list {
		for range 9 {
			f.counts.Handed(i, false)
		}
	}
	words := strings.Split(f.words(), "\n")
	assert.Len(t, words, 8, "notices")
	for _, w := range words {
		assert.LessOrEqual(t, len(w), 500, "%d bytes", len(w))
	}
}

func TestCounts_ConcurrentRequests(t *testing.T) {
	t.Parallel()
	p := in(instance.Prefill, "a:1")
	f := newFleet(p, in(instance.Decode, "b:1"))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 200 {
				f.counts.Handed(p, i > 3)
				f.counts.Done(alone("n"))
				f.counts.Done(&forward.Entry{Route: flow.Route{Prefill: "a:1", Decode: "b:1"}})
				_ = f.words()
			}
		})
	}
	all.Wait()
	f.counts.Handed(p, true)
	f.counts.Done(&forward.Entry{Route: flow.Route{Prefill: "a:1", Decode: "b:1"}})
	assert.Equal(t, "", f.words())
}

// The proxy knows some problems from other parts than the membership.
func TestNotices_OtherParts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		set  func(*notice.View)
		want string
	}{
		{
			"KV events that cannot be followed", func(v *notice.View) {
				v.NoKVEvents = map[string]string{"p:2": "it connects", "p:1": "it needs a wildcard"}
			},
			"no KV events from p:1: it needs a wildcard\nno KV events from p:2: it connects",
		},
		{
			"keys of a former etcd, which etcd and so pdctl lack", func(v *notice.View) { v.Kept = 3 },
			"keys of a former etcd are in effect, which etcd lacks (3): pdctl restore --all writes them back, pdctl forget --all drops them",
		},
		{
			"LMCache notifications that do not arrive", func(v *notice.View) {
				v.Unnotified = map[instance.Key]string{members.Prefill("p:2"): "port 8500 of the agent on p (--lmcache-notify)", members.Prefill("p:1"): "a"}
			},
			"prefill p:1 is bypassed: its LMCache notifications do not arrive; they are expected at a\n" +
				"prefill p:2 is bypassed: its LMCache notifications do not arrive; they are expected at port 8500 of the agent on p (--lmcache-notify)",
		},
	} {
		v := newFleet(in(instance.Prefill, "p:1"), in(instance.Decode, "d:1")).view()
		tc.set(&v)
		assert.Equal(t, tc.want, strings.Join(v.Texts(), "\n"), tc.name)
	}
}
