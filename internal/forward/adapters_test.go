package forward_test

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/catalog"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// startWithModels is start with engines that load adapters, and a catalog that reads them.
func startWithModels(t *testing.T, prefills, decodes int) *rig {
	t.Helper()
	var r *rig
	var picker *sched.Scheduler
	c := catalog.New(catalog.Options{
		Members: func() *instance.Snapshot { return r.members.Snapshot() },
		Read: func(ctx context.Context, in *instance.Instance) (instance.Facts, error) {
			return vllm.New("").Models(ctx, vllm.BaseURL(in))
		},
		Observe: func(_ context.Context, in *instance.Instance, facts instance.Facts) {
			r.observe(in.Key, facts.Models...)
		},
		Serves:  func(model string) bool { return picker.Serves(model) },
		Timeout: waitLimit,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	r = startTuned(t, fakevllm.NIXL, prefills, decodes, tuning{
		engine:  func(o *fakevllm.Options) { o.RuntimeLoRA = true },
		forward: func(o *forward.Options) { o.Models = c; picker, _ = o.Picker.(*sched.Scheduler) },
	})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	return r
}

// observe adds a list of models to the membership.
func (r *rig) observe(k instance.Key, models ...string) {
	r.observing.Lock()
	defer r.observing.Unlock()
	all := slices.Clone(r.members.Snapshot().All())
	for i, in := range all {
		if in.Key == k {
			next := *in
			next.Record.Models, next.ModelsRead = models, true
			all[i] = &next
		}
	}
	r.members.set(all...)
}

// change loads or unloads an adapter at one engine.
func change(t *testing.T, s *fakevllm.Server, what, name string) {
	t.Helper()
	body := `{"lora_name":` + strconv.Quote(name) + `,"lora_path":"."}`
	a := do(http.DefaultClient, newRequest(t.Context(), t, http.MethodPost, s.URL()+"/v1/"+what+"_lora_adapter", strings.NewReader(body)))
	require.Equal(t, http.StatusOK, a.status, "%s %s: %v", what, name, a.err)
}

// Engines that have unloaded a model answer 404 for it. The others serve, no engine is blamed, and if none is
// left, the client gets the 404.
func TestUnloadedModel_NoBlame(t *testing.T) {
	t.Parallel()
	r := startWithModels(t, 2, 6)
	body := strings.Replace(chatBody(false, ""), `"m"`, `"late"`, 1)
	for _, s := range slices.Concat(r.P, r.D) {
		change(t, s, "load", "late")
	}
	eventually(t, "a pair serves the model", func() bool { // on a slow machine decode's lists may arrive first
		a := r.post("/v1/chat/completions", body)
		a.require(t, http.StatusOK)
		return r.entry().DecodeOnly == ""
	})
	for _, s := range slices.Concat(r.P[:1], r.D[:5]) { // more than the attempts of a request
		change(t, s, "unload", "late")
	}
	for range 12 {
		r.post("/v1/chat/completions", body).require(t, http.StatusOK)
		e := r.entry()
		assert.Equal(t, r.D[5].Address(), e.Decode, "served by %+v", e)
	}
	change(t, r.P[1], "unload", "late")
	a := r.post("/v1/chat/completions", body)
	if e := r.entry(); a.status != http.StatusOK || e.DecodeOnly == "" {
		t.Errorf("without prefill: %d %+v", a.status, e)
	}
	change(t, r.D[5], "unload", "late")
	r.post("/v1/chat/completions", body).check(t, http.StatusNotFound, "The model `late` does not exist.")
	r.entry()
	for _, in := range r.members.Snapshot().All() {
		assert.True(t, r.tracker.Available(in.Key), "%s is ejected", in.Key)
	}
	r.noneTroubled()
	r.post("/v1/chat/completions", chatBody(false, "")).check(t, http.StatusOK)
	r.entry()
}

// A model that only prefill instances have is served only on routes of a single instance. A model that only
// decode instances have is served without prefill.
func TestModelOfOneRole(t *testing.T) {
	t.Parallel()
	r := startWithModels(t, 1, 1)
	change(t, r.P[0], "load", "half")
	body := strings.Replace(chatBody(false, ""), `"m"`, `"half"`, 1)
	a := r.post("/v1/chat/completions", body)
	if r.entry(); a.status != http.StatusServiceUnavailable {
		t.Errorf("only prefill: %d %s", a.status, a.body)
	}
	assert.EqualValues(t, 0, r.P[0].Counters().Requests, "prefills that no decode instance could use")
	reads := func() (n int) {
		for _, q := range slices.Concat(r.P[0].Requests(), r.D[0].Requests()) {
			if q.Path == "/v1/models" {
				n++
			}
		}
		return n
	}
	known := reads()
	for range 3 {
		a := r.post("/tokenize", `{"model":"half","prompt":"a b c"}`)
		if e := r.entry(); a.status != http.StatusOK || e.Prefill != r.P[0].Address() {
			t.Errorf("/tokenize, only prefill: %d %+v %s", a.status, e, a.body)
		}
	}
	assert.Equal(t, 0, reads()-known, "reads of the lists of models, although the model was known")
	change(t, r.P[0], "unload", "half")
	change(t, r.D[0], "load", "other")
	a = r.post("/v1/chat/completions", strings.Replace(body, `"half"`, `"other"`, 1))
	if e := r.entry(); a.status != http.StatusOK || e.DecodeOnly != "no_prefill" {
		t.Errorf("only decode: %d %+v %s", a.status, e, a.body)
	}
}
