package real_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvfollow"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// cached is a prompt with the parameters that affect its cache key.
type cached struct {
	prompt, lora, salt string
}

func (c cached) model() string {
	if c.lora != "" {
		return c.lora
	}
	return model
}

// answer sends the prompt and returns the number of its tokens that the engine found in its cache.
func (c cached) answer(r *rig, e *engine) int {
	r.t.Helper()
	body := map[string]any{"model": c.model(), "prompt": c.prompt, "max_tokens": 1, "temperature": 0}
	if c.salt != "" {
		body["cache_salt"] = c.salt
	}
	var resp struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	c.post(r, e, "/v1/completions", body, &resp)
	return resp.Usage.Details.Cached
}

func (c cached) tokens(r *rig, e *engine) []uint32 {
	r.t.Helper()
	var resp struct {
		Tokens []uint32 `json:"tokens"`
	}
	c.post(r, e, "/tokenize", map[string]any{"model": c.model(), "prompt": c.prompt}, &resp)
	return resp.Tokens
}

func (c cached) post(r *rig, e *engine, path string, body, into any) {
	r.t.Helper()
	raw, err := json.Marshal(body)
	require.NoError(r.t, err)
	status, answer, err := r.callAt(e.url(), "POST", path, string(raw))
	if err != nil || status != 200 {
		r.t.Fatalf("%s: %d, %v: %s", path, status, err, answer)
	}
	require.NoError(r.t, json.Unmarshal(answer, into))
}

// TestKVEventsOfVLLM checks that the index built from a real engine's events predicts, for a repeated
// prompt, the number of tokens that the engine finds in its cache.
func TestKVEventsOfVLLM(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	ports, err := fleet.FreePorts(2)
	require.NoError(t, err)
	r.more = []string{
		"--enable-prefix-caching",
		fmt.Sprintf(`--kv-events-config={"enable_kv_cache_events":true,"publisher":"zmq","topic":"kv-events","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}`, ports[0], ports[1]),
	}
	e, err := r.launch("publisher", "")
	require.NoError(t, err)
	words := func(from string, n int) string { return strings.Repeat(from+" the licence grants rights. ", n) }
	shared := words("Whereas", 20)
	prompts := []cached{
		{prompt: shared + words("first", 10)}, {prompt: shared + words("second", 12)}, {prompt: shared},
		{prompt: shared, lora: adapted}, {prompt: shared, salt: "tenant"}, {prompt: shared, lora: adapted, salt: "tenant"},
		{prompt: "short"},
	}
	prompts[0].answer(r, e) // before the publisher is followed, to test the replay

	var snap atomic.Pointer[instance.Snapshot]
	snap.Store(instance.NewSnapshot(1, []*instance.Instance{{
		Key: instance.Key{Role: instance.Prefill, Address: e.address}, Verified: true,
		Record: instance.Record{Address: e.address, Scheme: "http", State: instance.Ready},
	}}))
	x := kvindex.New(nil)
	f := kvfollow.New(kvfollow.Options{Index: x, Membership: snap.Load, Ask: kvfollow.Sources(r.http), Dial: new(net.Dialer).DialContext})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	target := kvindex.Target{Address: e.address}
	testkit.Eventually(t, patience, func() error {
		if st := x.Stats(target); !st.Live || st.Blocks == 0 {
			return fmt.Errorf("%+v; %+v", st, f.Status())
		}
		return nil
	})
	predict := func(c cached) (blocks, size, all int) {
		out := []int{0}
		size = x.BlockSize(target)
		ids := c.tokens(r, e)
		x.Longest(kvindex.Chain(nil, ids, size, c.lora, c.salt), []kvindex.Target{target}, out)
		return out[0], size, len(ids)
	}
	for range 2 {
		for i, c := range prompts {
			// The engine publishes before it answers. The batch has arrived when its sequence number no longer
			// changes.
			testkit.Eventually(t, patience, func() error { return settled(f) })
			blocks, size, all := predict(c)
			want := min(blocks, (all-1)/size) * size // the last token is always computed
			if got := c.answer(r, e); got != want {
				t.Errorf("prompt %d of %d tokens: the engine found %d, the index predicts %d", i, all, got, want)
			} else {
				logf("prompt %d of %d tokens: %d of them cached, as the index predicts", i, all, got)
			}
			if blocks < all/size { // the engine publishes the blocks that it computed
				testkit.Eventually(t, patience, func() error {
					if n, _, _ := predict(c); n != all/size {
						return fmt.Errorf("%d of %d blocks are known", n, all/size)
					}
					return nil
				})
			}
		}
	}
}

// settled returns nil if the publisher is followed without errors.
func settled(f *kvfollow.Follower) error {
	if st := f.Status(); len(st) != 1 || st[0].State != kvevents.Following || st[0].Bad > 0 || st[0].Index.Orphans > 0 {
		return fmt.Errorf("%+v", st)
	}
	return nil
}
