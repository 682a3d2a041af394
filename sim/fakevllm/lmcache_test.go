package fakevllm

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// sendLMCache posts a completion of one prompt and returns its text.
func sendLMCache(t *testing.T, s *Server, params string, tokens int) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+"/v1/completions", strings.NewReader(
		fmt.Sprintf(`{"model":"fake-model","prompt":"once upon a time","max_tokens":%d%s}`, tokens, params)))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

// A decode that comes between the listing of the chunks and their arrival answers wrong,
// one with another tag computes the prompt itself, and chunks are read once.
func TestLMCacheReadsTooEarly(t *testing.T) {
	t.Parallel()
	p := StartTest(t, Options{Mode: LMCache, Role: RolePrefill})
	d := StartTest(t, Options{Mode: LMCache, Role: RoleDecode})
	port := d.AllocPorts()[0]
	spec := func(tag string) string {
		return fmt.Sprintf(`,"kv_transfer_params":{"disagg_spec":{"req_id":"r","receiver_host":"127.0.0.1","receiver_init_port":[%d],"receiver_alloc_port":[%d]},"lmcache.tag.t":%q}`, port, port, tag)
	}
	read := func(tag string) string { return fmt.Sprintf(`,"kv_transfer_params":{"lmcache.tag.t":%q}`, tag) }

	p.SetNotices(NoticePlan{Listed: func(int) { sendLMCache(t, d, read("a"), 4) }})
	sendLMCache(t, p, spec("a"), 1)
	if c := d.Counters(); c.WrongKV != 1 {
		t.Errorf("read while it was written: %+v", c)
	}
	p.SetNotices(NoticePlan{})
	sendLMCache(t, p, spec("b"), 1)
	if n := d.Unread(); n != 1 {
		t.Errorf("%d prompts lie there", n)
	}
	sendLMCache(t, d, read("c"), 4)
	sendLMCache(t, d, "", 4)
	if c := d.Counters(); c.LocalPrefills != 2 || c.WrongKV != 1 {
		t.Errorf("chunks of another tag: %+v", c)
	}
	sendLMCache(t, d, read("b"), 4)
	if c := d.Counters(); c.TransfersLoaded != 2 || d.Unread() != 0 {
		t.Errorf("%+v, %d unread", c, d.Unread())
	}
}

// A rank that finds no port for itself takes the engine down.
func TestLMCacheTooFewPorts(t *testing.T) {
	t.Parallel()
	p := StartTest(t, Options{Mode: LMCache, Role: RolePrefill, Ranks: 2})
	sendLMCache(t, p, `,"kv_transfer_params":{"disagg_spec":{"req_id":"r","receiver_host":"127.0.0.1","receiver_init_port":[1],"receiver_alloc_port":[1]}}`, 1)
	<-p.Died()
	if c := p.Counters(); c.Crashes != 1 {
		t.Errorf("%+v", c)
	}
}
