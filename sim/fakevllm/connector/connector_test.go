package connector_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/fakevllm/counters"
	"github.com/pdmesh/pdmesh/sim/fakevllm/engine"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

func TestMain(m *testing.M) { leak.Main(m) }

// node is a connector without an engine around it.
type node struct {
	connector.Connector
	*counters.Counters
	controls *connector.Controls
	core     *engine.Core
	done     chan struct{}
	crashes  int
}

func start(t *testing.T, conf connector.Config) *node {
	t.Helper()
	n := &node{Counters: new(counters.Counters), controls: new(connector.Controls), done: make(chan struct{})}
	n.core = engine.New(engine.Config{ID: "engine", Count: n.Counters})
	log := logrus.New()
	log.SetOutput(io.Discard)
	conf.Shared, conf.Count, conf.Controls, conf.Log = transfer.NewShared(), n.Counters, n.controls, log
	conf.SideChannelAddr, conf.TPSize, conf.Ranks = "127.0.0.1:0", 1, 1
	conf.Version, conf.Lease, conf.TransferTimeout = "0.24.0", time.Minute, time.Minute
	if conf.Policy == "" {
		conf.Policy = connector.PolicyFail
	}
	var work sync.WaitGroup
	n.Connector = connector.New(conf, connector.Life{
		EngineIDs: []string{"engine-" + string(conf.Role)}, HTTP: "127.0.0.1:1", Done: n.done, Work: &work, Crash: func() { n.crashes++ },
		At: connector.Addresses{Bootstrap: "127.0.0.1:0", Side: "127.0.0.1:0", Alloc: []string{"127.0.0.1:0"}},
	})
	require.NoError(t, n.Start(t.Context()))
	t.Cleanup(func() {
		close(n.done)
		n.Close()
		work.Wait()
	})
	return n
}

// request is one for a prompt, with kv_transfer_params.
func (n *node) request(t *testing.T, prompt, kv string) *connector.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", nil)
	r.Header.Set("X-Request-Id", "R")
	var ids []int
	for _, c := range []byte(prompt) {
		ids = append(ids, int(c))
	}
	p := &request.Request{Prompts: [][]int{ids}, N: 1}
	if kv != "" {
		p.KV = []byte(kv)
	}
	return &connector.Request{
		Reply: &answer.Reply{Request: p, ID: "cmpl-R", Base: "R"}, HTTP: r,
		Engine: &engine.Request{Core: n.core, Life: &engine.Lifetime{Client: t.Context().Done(), Engine: n.done}},
	}
}

// run takes a request all the way.
func (n *node) run(t *testing.T, r *connector.Request) {
	t.Helper()
	leg := n.Leg(r)
	defer leg.Drop(r)
	if e := leg.Begin(r); e != nil {
		t.Fatalf("the engine has died: %v", e)
	}
	if !leg.Await(r) {
		t.Fatal("it was given up")
	}
	leg.Prefilled(r)
	leg.End(r, "length", true)
}

const produce = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

func TestPlain(t *testing.T) {
	t.Parallel()
	n := start(t, connector.Config{Mode: kvparams.Plain})
	text := strings.Repeat("0123456789", 4)
	first, second := n.request(t, text, ""), n.request(t, text, "")
	n.run(t, first)
	n.run(t, second)
	if first.Cached != 0 || second.Cached != 32 || n.Read().LocalPrefills != 1 {
		t.Errorf("%d and %d tokens are found, %d prompts computed", first.Cached, second.Cached, n.Read().LocalPrefills)
	}
}

// Blocks are fetched over the side channel once, and what becomes of a load that fails is
// the policy's matter.
func TestNIXL(t *testing.T) {
	t.Parallel()
	p := start(t, connector.Config{Mode: kvparams.NIXL, Role: connector.RolePrefill})
	made := p.request(t, "a prompt", produce)
	p.run(t, made)
	if h := p.Transfers(0); h.Waiting != 1 || made.TransferParams == nil {
		t.Fatalf("%+v, %s", h, made.TransferParams)
	}
	fails := start(t, connector.Config{Mode: kvparams.NIXL, Role: connector.RoleDecode})
	computes := start(t, connector.Config{Mode: kvparams.NIXL, Role: connector.RoleDecode, Policy: connector.PolicyRecompute})
	for _, tt := range []struct {
		what   string
		on     *node
		prompt string
		cached int
		failed bool
	}{
		{"another prompt", fails, "a promise", 0, true},
		{"the prompt", fails, "a prompt", 7, false},
		{"a second time", fails, "a prompt", 0, true},
		{"a second time, with the policy to compute", computes, "a prompt", 0, false},
	} {
		r := tt.on.request(t, tt.prompt, string(made.TransferParams))
		tt.on.run(t, r)
		if r.Cached != tt.cached || r.Failed != tt.failed {
			t.Errorf("%s: %d tokens are loaded, failed %v", tt.what, r.Cached, r.Failed)
		}
	}
	if c := computes.Read(); c.Recomputed != 1 || c.LocalPrefills != 1 {
		t.Errorf("%+v", c)
	}
}

// What ends otherwise than by its length or a stop is not handed over, nor what a fault keeps
// back, nor what a stream cannot carry.
func TestNIXLHandsNothingOver(t *testing.T) {
	t.Parallel()
	p := start(t, connector.Config{Mode: kvparams.NIXL, Role: connector.RolePrefill})
	for _, tt := range []struct {
		finish         string
		answered, noKV bool
		want           bool
	}{
		{"length", true, false, true},
		{"stop", true, false, true},
		{"tool_calls", true, false, false},
		{"length", false, false, false},
		{"length", true, true, false},
	} {
		r := p.request(t, "a prompt", produce)
		r.NoKV = tt.noKV
		leg := p.Leg(r)
		if e := leg.Begin(r); e != nil {
			t.Fatal(e)
		}
		if leg.End(r, tt.finish, tt.answered); (r.TransferParams != nil) != tt.want {
			t.Errorf("%+v: %s", tt, r.TransferParams)
		}
	}
}

// A decode that comes first waits for its prefill, and one whose prefill was given up does so
// until it leaves.
func TestMooncake(t *testing.T) {
	t.Parallel()
	p := start(t, connector.Config{Mode: kvparams.Mooncake, Role: connector.RolePrefill})
	d := start(t, connector.Config{Mode: kvparams.Mooncake, Role: connector.RoleDecode})
	load := func(id string) string {
		return `{"do_remote_prefill":true,"transfer_id":"` + id + `","remote_engine_id":"engine-prefill","remote_bootstrap_addr":"http://` + p.Addresses().Bootstrap + `"}`
	}
	r := d.request(t, "a prompt", load("x"))
	leg := d.Leg(r)
	if e := leg.Begin(r); e != nil {
		t.Fatal(e)
	}
	p.run(t, p.request(t, "a prompt", `{"do_remote_decode":true,"transfer_id":"x"}`))
	if !leg.Await(r) || r.Cached != 7 || r.WrongKV {
		t.Errorf("%d tokens are loaded, wrong %v", r.Cached, r.WrongKV)
	}

	dropped := p.request(t, "a prompt", `{"do_remote_decode":true,"transfer_id":"y"}`)
	leg = p.Leg(dropped)
	if e := leg.Begin(dropped); e != nil {
		t.Fatal(e)
	}
	leg.Drop(dropped)
	r = d.request(t, "a prompt", load("y"))
	leave := make(chan struct{})
	close(leave)
	r.Engine.Life.Client = leave
	if leg = d.Leg(r); leg.Begin(r) != nil || leg.Await(r) {
		t.Error("blocks of a prefill that was given up have come")
	}
}

// A leg for the other role ends an engine of Mooncake.
func TestMooncakeCrash(t *testing.T) {
	t.Parallel()
	d := start(t, connector.Config{Mode: kvparams.Mooncake, Role: connector.RoleDecode})
	r := d.request(t, "a prompt", `{"do_remote_decode":true,"transfer_id":"x"}`)
	if e := d.Leg(r).Begin(r); e == nil || d.crashes != 1 || d.Read().Crashes != 1 || len(d.Violations()) != 1 {
		t.Errorf("%v, %d crashes, %q", e, d.crashes, d.Violations())
	}
}

// The blocks of MoRI-IO in READ mode are read once they are there; earlier reads are wrong.
func TestMoRIIORead(t *testing.T) {
	t.Parallel()
	p := start(t, connector.Config{Mode: kvparams.MoRIIORead, Role: connector.RolePrefill})
	d := start(t, connector.Config{Mode: kvparams.MoRIIORead, Role: connector.RoleDecode})
	made := p.request(t, "a prompt", `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"x"}`)
	p.run(t, made)
	for i, wrong := range []bool{false, true} { // the second time the blocks were fetched
		r := d.request(t, "a prompt", string(made.TransferParams))
		d.run(t, r)
		if r.Cached != 7 || r.WrongKV != wrong {
			t.Errorf("read %d: %d tokens, wrong %v", i, r.Cached, r.WrongKV)
		}
	}
}

// An LMCache decode that comes between the list of chunks and the chunks answers wrong.
func TestLMCacheReadsTooEarly(t *testing.T) {
	t.Parallel()
	d := start(t, connector.Config{Mode: kvparams.LMCache, Role: connector.RoleDecode})
	p := start(t, connector.Config{Mode: kvparams.LMCache, Role: connector.RolePrefill})
	_, port, _ := strings.Cut(d.Addresses().Alloc[0], ":")
	spec := `{"disagg_spec":{"req_id":"q","receiver_host":"127.0.0.1","receiver_init_port":[1],"receiver_alloc_port":[` + port + `]}}`
	p.run(t, p.request(t, "a prompt", spec))
	r := d.request(t, "a prompt", "")
	d.run(t, r)
	if r.Cached != 7 || r.WrongKV {
		t.Errorf("%d tokens are loaded, wrong %v", r.Cached, r.WrongKV)
	}
	early := d.request(t, "a prompt", "")
	p.controls.SetNotices(connector.NoticePlan{Listed: func(int) { d.run(t, early) }})
	p.run(t, p.request(t, "a prompt", spec))
	if early.Cached != 7 || !early.WrongKV {
		t.Errorf("too early: %d tokens are loaded, wrong %v", early.Cached, early.WrongKV)
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode kvparams.Mode
		role connector.Role
		kv   string
		want []string
	}{
		{kvparams.Plain, connector.RoleBoth, "{}", []string{"kv_transfer_params in plain mode"}},
		{kvparams.NIXL, connector.RolePrefill, produce, nil},
		{kvparams.NIXL, connector.RoleDecode, produce, []string{"kv_transfer_params has the prefill form"}},
		{kvparams.NIXL, connector.RoleBoth, produce, nil},
		{kvparams.P2P, connector.RolePrefill, "", []string{"kv_transfer_params has no remote_decoder", "no X-data-parallel-rank"}},
		{kvparams.Mooncake, connector.RolePrefill, `{"do_remote_decode":true}`, []string{"kv_transfer_params has not the prefill form", "no X-data-parallel-rank"}},
		{kvparams.LMCache, connector.RolePrefill, "", []string{"kv_transfer_params has not the prefill form"}},
	} {
		n := start(t, connector.Config{Mode: tt.mode, Role: tt.role})
		var got []string
		n.Inspect(n.request(t, "a prompt", tt.kv), func(what string) { got = append(got, what) })
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s %q, %s: %q", tt.mode, tt.role, tt.kv, got)
		}
	}
}
