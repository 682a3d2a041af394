package fakevllm_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// A decode request between the listing and the arrival of the chunks has a wrong answer. A
// request with another tag computes the prompt itself. Chunks are read once.
func TestLMCacheReadsTooEarly(t *testing.T) {
	t.Parallel()
	p := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.LMCache, Role: fakevllm.RolePrefill})
	d := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.LMCache, Role: fakevllm.RoleDecode, PromptTokensDetails: true})
	port := d.AllocPorts()[0]
	spec := func(tag string) string {
		return fmt.Sprintf(`,"kv_transfer_params":{"disagg_spec":{"req_id":"r","receiver_host":"127.0.0.1","receiver_init_port":[%d],"receiver_alloc_port":[%d]},"lmcache.tag.t":%q}`, port, port, tag)
	}
	read := func(tag string) string { return fmt.Sprintf(`,"kv_transfer_params":{"lmcache.tag.t":%q}`, tag) }

	p.SetNotices(fakevllm.NoticePlan{Listed: func(int) { complete(t, d, read("a"), 4) }})
	complete(t, p, spec("a"), 1)
	c := d.Counters()
	assert.EqualValues(t, 1, c.WrongKV, "read while it was written: %+v", c)
	p.SetNotices(fakevllm.NoticePlan{})
	complete(t, p, spec("b"), 1)
	assert.Equal(t, 1, d.Unread(), "unread prompts")
	complete(t, d, read("c"), 4)
	complete(t, d, "", 4)
	c = d.Counters()
	assert.True(t, c.LocalPrefills == 2 && c.WrongKV == 1, "chunks of another tag: %+v", c)
	assert.Contains(t, complete(t, d, read("b"), 4), `"cached_tokens":3,`)
	c = d.Counters()
	assert.True(t, c.TransfersLoaded == 2 && d.Unread() == 0, "%+v, %d unread", c, d.Unread())
}

// A rank without a port in the params crashes the engine.
func TestLMCacheTooFewPorts(t *testing.T) {
	t.Parallel()
	p := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.LMCache, Role: fakevllm.RolePrefill, Ranks: 2})
	complete(t, p, `,"kv_transfer_params":{"disagg_spec":{"req_id":"r","receiver_host":"127.0.0.1","receiver_init_port":[1],"receiver_alloc_port":[1]}}`, 1)
	<-p.Died()
	c := p.Counters()
	assert.EqualValues(t, 1, c.Crashes, "%+v", c)
}

// complete posts a completion, which may crash the engine, and returns the answer.
func complete(t *testing.T, s *fakevllm.Server, params string, tokens int) string {
	t.Helper()
	_, answer := try(t, s, "", fmt.Sprintf(`{"model":"fake-model","prompt":"once upon a time","max_tokens":%d%s}`, tokens, params))
	return answer
}
