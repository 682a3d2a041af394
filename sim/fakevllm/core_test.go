package fakevllm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

// words returns n words of several lengths, which differ between seeds.
func words(seed, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "w%d%s ", seed*100000+i, strings.Repeat("x", (seed+i)%9))
	}
	return b.String()
}

// ask requests one token, and returns the number of prompt tokens, and of those that were cached.
func ask(t *testing.T, s *fakevllm.Server, prompt, more string) (tokens, cached int) {
	t.Helper()
	r := post(t, client(t), s.URL()+"/v1/completions", "", fmt.Sprintf(`{"prompt":%q,"max_tokens":1%s}`, prompt, more))
	var got struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	return got.Usage.Prompt, got.Usage.Details.Cached
}

func TestPrefixCache(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.NIXL, BlockSize: 16, CacheBlocks: 100, PromptTokensDetails: true})
	a := words(1, 60)
	n, cached := ask(t, s, a, "")
	assert.Equal(t, 0, cached, "cached, of %d tokens, in an empty cache", n)
	if _, got := ask(t, s, a, ""); got != (n-1)/16*16 {
		t.Errorf("%d of %d tokens found again", got, n)
	}
	for i, salt := range []string{"s", "t", "s"} {
		if _, got := ask(t, s, a, `,"cache_salt":"`+salt+`"`); got != i/2*((n-1)/16*16) {
			t.Errorf("ask %d with the salt %s: %d tokens found", i, salt, got)
		}
	}
	c := s.Counters()
	if c.CacheQueries != int64(5*n) || c.CacheHits != int64(2*((n-1)/16*16)) || c.CacheQueries-c.CacheHits != c.ComputedTokens {
		t.Errorf("counters %+v", c)
	}
	for _, want := range []string{
		fmt.Sprintf(`vllm:prefix_cache_queries_total{model_name="fake-model",engine="0"} %d`, 5*n),
		fmt.Sprintf(`vllm:prefix_cache_hits_total{model_name="fake-model",engine="0"} %d`, 2*((n-1)/16*16)),
		`vllm:cache_config_info{model_name="fake-model",engine="0",block_size="16",num_gpu_blocks="100"} 1`,
		`vllm:kv_cache_usage_perc{model_name="fake-model",engine="0"} 0` + "\n",
	} {
		assert.Contains(t, get(t, client(t), s.URL()+"/metrics").body, want)
	}
}

// TestAnswersAreCached: the next turn of a chat finds the previous answer in the cache.
func TestAnswersAreCached(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{CacheBlocks: 100, PromptTokensDetails: true, Mode: fakevllm.NIXL})
	prompt := model.TokenizeFine(words(1, 20))
	r := post(t, client(t), s.URL()+"/v1/completions", "", fmt.Sprintf(`{"prompt":%s,"max_tokens":40,"ignore_eos":true}`, jsonText(prompt)))
	require.Equal(t, 200, r.status, r.body)
	a := fakevllm.ExpectedCompletion(prompt, fakevllm.Sampling{MaxTokens: 40, IgnoreEOS: true})
	all := append(slices.Clone(prompt), a.Tokens...)
	known := len(all) - 1 // the last token was never computed
	r = post(t, client(t), s.URL()+"/v1/completions", "", fmt.Sprintf(`{"prompt":%s,"max_tokens":1}`, jsonText(append(all, 99))))
	want := fmt.Sprintf(`"cached_tokens":%d,`, known/16*16)
	assert.Contains(t, r.body, want, "no %s in %s", want, r.body)
}

func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// TestKVTransfer_HoldsBlocks: blocks that decode has not fetched yet are not evicted.
func TestKVTransfer_HoldsBlocks(t *testing.T) {
	t.Parallel()
	shared := fakevllm.NewShared()
	p := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.NIXL, Role: fakevllm.RolePrefill, CacheBlocks: 10, Shared: shared})
	d := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.NIXL, Role: fakevllm.RoleDecode, CacheBlocks: 100, Shared: shared, PromptTokensDetails: true})
	prompt := jsonText(model.TokenizeFine(words(1, 60))[:96])
	r := post(t, client(t), p.URL()+"/v1/completions", "", `{"prompt":`+prompt+`,"max_tokens":1,"kv_transfer_params":`+prefillForm+`}`)
	var got struct {
		KV json.RawMessage `json:"kv_transfer_params"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.body), &got))
	if m := get(t, client(t), p.URL()+"/metrics").body; !strings.Contains(m, `vllm:kv_cache_usage_perc{model_name="fake-model",engine="0"} 0.6`) {
		t.Errorf("the blocks of the offer are not held: %s", m)
	}
	r = post(t, client(t), d.URL()+"/v1/completions", "", `{"prompt":`+prompt+`,"max_tokens":1,"kv_transfer_params":`+string(got.KV)+`}`)
	require.Contains(t, r.body, `"cached_tokens":95,`)
	if m := get(t, client(t), p.URL()+"/metrics").body; !strings.Contains(m, `vllm:kv_cache_usage_perc{model_name="fake-model",engine="0"} 0`+"\n") {
		t.Errorf("blocks that were fetched are held: %s", m)
	}
	c := d.Counters()
	assert.True(t, c.ComputedTokens == 1 && c.CacheHits == 0, "decode has computed more than the last token: %+v", c)
}

// TestPrefill_OneAtATime: prompts are computed one at a time, waiting prompts are counted,
// and a cancelled prompt takes no more time.
func TestPrefill_OneAtATime(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{CacheBlocks: 20_000, PrefillRate: 500, PromptTokensDetails: true, Mode: fakevllm.NIXL})
	prompt := jsonText(model.TokenizeFine(words(1, 120))[:161])
	// A prompt that takes minutes blocks the others until all have arrived.
	longest := dialRaw(t, s)
	longest.send(t, "/v1/completions", "", `{"prompt":[17`+strings.Repeat(",17", 300_000)+`],"max_tokens":1}`)
	running(t, s, 1, 0)
	before := s.Counters()
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			r := post(t, client(t), s.URL()+"/v1/completions", "", `{"prompt":`+prompt+`,"max_tokens":1}`)
			assert.Equal(t, 200, r.status, r.body)
		})
	}
	running(t, s, 1, 3)
	_ = longest.conn.Close()
	group.Wait()
	if c := s.Counters(); c.ComputedTokens-before.ComputedTokens != 163 || c.CacheHits-before.CacheHits != 320 {
		t.Errorf("the second and the third have not found what the first has computed: %+v", c)
	}
}

// TestQueue_AbandonedRequest: requests do not wait for earlier ones that were cancelled.
func TestQueue_AbandonedRequest(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{CacheBlocks: 100, PrefillRate: 1, Mode: fakevllm.NIXL})
	long := jsonText(model.TokenizeFine(words(1, 150))[:200])
	first, second := dialRaw(t, s), dialRaw(t, s)
	first.send(t, "/v1/completions", "", `{"prompt":`+long+`,"max_tokens":1}`)
	running(t, s, 1, 0)
	second.send(t, "/v1/completions", "", `{"prompt":`+long+`,"max_tokens":1}`)
	running(t, s, 1, 1)
	_ = second.conn.Close()
	running(t, s, 1, 0)
	_ = first.conn.Close()
	r := post(t, client(t), s.URL()+"/v1/completions", "", `{"prompt":[17],"max_tokens":1}`)
	assert.Equal(t, 200, r.status, r.body)
}

// running blocks until the numbers of running and waiting requests are run and wait.
func running(t *testing.T, s *fakevllm.Server, run, wait int64) {
	t.Helper()
	eventually(t, func() error {
		c := s.Counters()
		return errors.Join(want("running", c.Running, run), want("waiting", c.Waiting, wait))
	})
}

// TestRewrittenParams: transfer params that were decoded and encoded again are refused,
// unless an option makes the engine as lenient as real ones.
func TestRewrittenParams(t *testing.T) {
	t.Parallel()
	for _, lenient := range []bool{false, true} {
		shared := fakevllm.NewShared()
		o := fakevllm.Options{Mode: fakevllm.NIXL, Shared: shared, RewrittenParams: lenient, PromptTokensDetails: true}
		p, d := fakevllm.StartTest(t, o), fakevllm.StartTest(t, o)
		r := post(t, client(t), p.URL()+"/v1/completions", "", `{"prompt":[17,18,19],"max_tokens":1,"kv_transfer_params":`+prefillForm+`}`)
		var got struct {
			KV map[string]any `json:"kv_transfer_params"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.body), &got))
		r = post(t, client(t), d.URL()+"/v1/completions", "", `{"prompt":[17,18,19],"max_tokens":1,"kv_transfer_params":`+jsonText(got.KV)+`}`)
		loaded := r.status == 200 && strings.Contains(r.body, `"cached_tokens":2,`)
		assert.True(t, loaded == lenient, "lenient %v: %d %s", lenient, r.status, r.body)
	}
}
