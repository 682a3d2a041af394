package forward_test

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// ofVersions sets the vLLM versions in the records of the rig's engines, prefill first.
func (r *rig) ofVersions(versions ...string) {
	for i, s := range slices.Concat(r.P, r.D) {
		r.members.changeAt(s, func(in *instance.Instance) { in.Record.Version = versions[i] })
	}
}

// When the only decode instance of a version does not answer, the prefill instances of
// the other one are used.
func TestOtherVersion_Serves(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 2, 2, nil)
	r.ofVersions("0.31.0", "0.32.0", "0.31.0", "0.32.0")
	r.D[0].Kill()
	for range 4 {
		body := chatBody(true, "")
		r.checkComplete(r.post("/v1/chat/completions", body), true, body)
		if e := r.entry(); e.Prefill != r.P[1].Address() || e.Decode != r.D[1].Address() || e.DecodeOnly != "" {
			t.Errorf("%s and %s, decode-only %q", e.Prefill, e.Decode, e.DecodeOnly)
		}
	}
}

// Prefill instances that cannot transfer to any decode instance do not each compute the
// prompt: the request becomes decode-only, with the reason.
func TestNoOtherVersion(t *testing.T) {
	t.Parallel()
	for _, prefills := range []int{1, 4} {
		r := start(t, fakevllm.NIXL, prefills, 2, nil)
		r.ofVersions(append(slices.Repeat([]string{"0.31.0"}, prefills), "0.31.0", "0.32.0")...)
		r.D[0].Kill()
		body := chatBody(true, "")
		r.checkComplete(r.post("/v1/chat/completions", body), true, body)
		if e, n := r.entry(), legs(r.P); e.DecodeOnly != "version_mismatch" || e.Decode != r.D[1].Address() || n > 2 {
			t.Errorf("%d of %d prefills, decode-only %q at %s", n, prefills, e.DecodeOnly, e.Decode)
		}
	}
}

// Since vLLM 0.21, a decode engine's refusal spends the KV transfer. With earlier versions, another decode
// instance may use it.
func TestRefusal_SpendsTransfer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		mode     fakevllm.Mode
		version  string
		prefills int64
	}{{fakevllm.NIXL, "0.20.2", 1}, {fakevllm.NIXL, "0.21.0", 2}, {fakevllm.NIXL, "", 2}, {fakevllm.Ascend, "0.20.2", 2}, {fakevllm.P2P, "0.27.0", 2}, {fakevllm.MoRIIORead, "0.32.0", 2}, {fakevllm.MoRIIORead, "0.20.2", 1}} {
		t.Run(string(tc.mode)+" "+tc.version, func(t *testing.T) {
			t.Parallel()
			r := start(t, tc.mode, 1, 2, nil)
			r.ofVersions(tc.version, tc.version, tc.version)
			script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 503, Times: 1})
			body := chatBody(true, "")
			r.checkComplete(r.post("/v1/chat/completions", body), true, body)
			assert.Equal(t, tc.prefills, legs(r.P), "prefills")
			assert.Equal(t, int(tc.prefills)-1, len(r.rec.spent), "spent KV transfers")
		})
	}
}

// A prefill that ends by abort is retried and does not count as an answer without a KV transfer.
func TestPrefillAborts(t *testing.T) {
	t.Parallel()
	eachSequentialChat(t, func(t *testing.T, mode fakevllm.Mode, q scenario) {
		r := start(t, mode, 2, 1, nil)
		script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultAbort, Times: 1})
		r.checkServed(q)
		if e := r.entry(); e.DecodeOnly != "" || r.rec.retried() != "prefill/aborted" || r.rec.missing != 0 {
			t.Errorf("decode-only %q, retried %q, %d without a KV transfer", e.DecodeOnly, r.rec.retried(), r.rec.missing)
		}
	})
}

// A decode engine of vllm-ascend whose KV cache is full aborts a request with the stop
// reason "recomputed". Before the commit that failure is retried, after it the client sees
// it. From other engines the word may be the client's own stop text.
func TestRecomputed(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		r := start(t, fakevllm.Ascend, 1, 2, nil)
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultRecomputed, Times: 1})
		body := chatBody(stream, "")
		a := r.post("/v1/chat/completions", body)
		r.checkComplete(a, true, body)
		assert.True(t, r.rec.retried() == "decode/gave_up" && !bytes.Contains(a.body, []byte("recomputed")),
			"retried %q: %s", r.rec.retried(), a.body)
		assert.EqualValues(t, 2, legs(r.P), "prefills, because the KV transfer was spent")
	}
	r := start(t, fakevllm.Ascend, 1, 2, nil)
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultRecomputed, At: fakevllm.AfterTokens, Tokens: 2, Times: 1})
	a := r.post("/v1/chat/completions", chatBody(true, ""))
	e := r.entry()
	assert.True(t, e.Outcome == relay.OutcomeBroken && a.err != nil, "outcome %s, the end %v", e.Outcome, a.err)
	if list := a.events(); len(list) == 0 || !strings.HasPrefix(list[len(list)-1], `{"error"`) || bytes.Contains(a.body, []byte("recomputed")) {
		t.Errorf("the client got %s", a.body)
	}

	r = start(t, fakevllm.NIXL, 1, 1, nil)
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultRecomputed, At: fakevllm.AfterTokens, Tokens: 2, Times: 1})
	if a := r.post("/v1/chat/completions", chatBody(true, "")); a.err != nil || !bytes.Contains(a.body, []byte("recomputed")) {
		t.Errorf("%v: %s", a.err, a.body)
	}
}

// With RewriteHost, decode gets the host by which the proxy reached prefill, not the host that prefill
// reports.
func TestRewriteRemoteHost(t *testing.T) {
	t.Parallel()
	for _, mode := range []fakevllm.Mode{fakevllm.NIXL, fakevllm.NIXLPush, fakevllm.Ascend} {
		for _, rewrite := range []bool{true, false} {
			r := start(t, mode, 0, 0, func(o *forward.Options) { o.RewriteHost = rewrite })
			p := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RolePrefill, Mode: mode, Models: []string{model}, SideChannelHost: "prefill.invalid"})
			d := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RoleDecode, Mode: mode, Models: []string{model}})
			r.members.set(instanceOf(instance.Prefill, p, mode), instanceOf(instance.Decode, d, mode))
			body := chatBody(false, "")
			a := r.post("/v1/chat/completions", body)
			if rewrite {
				r.checkComplete(a, true, body)
			}
			if n := d.Counters(); (n.TransfersLoaded > 0) != rewrite {
				t.Errorf("%s, rewrite %v: %+v, %q", mode, rewrite, n, d.Refusals())
			}
		}
	}
}

// A KV transfer that is older than its lease is not used again. The lease is that of the engine's version or
// record; KVBudget counts only if neither is known.
func TestKVBudget_FromEngineLease(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		version string
		stated  int
		again   bool // expects a second prefill
	}{{"0.20.2", 0, false}, {"0.32.0", 0, true}, {"0.32.0", 600, false}, {"0.32.0", 1e10, false}} {
		var prefills int64
		retried := "decode/gone"
		for strings.Contains(retried, "decode/gone") { // the scheduler did not have the last snapshot yet
			r := start(t, fakevllm.NIXL, 1, 2, func(o *forward.Options) { o.KVBudget = time.Nanosecond })
			r.ofVersions(tc.version, tc.version, tc.version)
			r.members.change(func(in *instance.Instance) { in.Record.KVLease = tc.stated })
			r.D[0].Kill()
			body := chatBody(true, "")
			r.checkComplete(r.post("/v1/chat/completions", body), true, body)
			prefills, retried = legs(r.P), r.rec.retried()
		}
		// The budget limits the second decode leg, too: the exact number of prefills depends on timing.
		assert.Equal(t, tc.again, prefills > 1, "%s, %d s: %d prefills (%s)", tc.version, tc.stated, prefills, retried)
	}
}

// Before vLLM 0.32, prefill and decode truncate a prompt that is longer than the context differently: to the
// context less max_tokens, which is 1 on the prefill leg. Such a request must not go through a pair.
func TestTruncatedPrompt(t *testing.T) {
	t.Parallel()
	const context = 600
	long, short := strings.Repeat("word ", 700), "tell me of the sea"
	for _, tc := range []struct {
		version, path, body string
		decodeOnly          string
	}{
		{"0.31.0", completionsPath, `"prompt":"` + long + `","max_tokens":9,"truncate_prompt_tokens":-1`, "engine_too_old"},
		{"0.31.0", completionsPath, `"prompt":"` + long + `","max_tokens":9,"truncate_prompt_tokens":50`, ""},
		{"0.31.0", completionsPath, `"prompt":"` + short + `","max_tokens":9,"truncate_prompt_tokens":-1`, ""},
		{"0.31.0", chatPath, `"messages":[{"role":"user","content":"` + long + `"}],"max_completion_tokens":9,"truncate_prompt_tokens":-1`, "engine_too_old"},
		{"0.31.0", responsesPath, `"input":"` + long + `","max_output_tokens":9,"truncation":"auto"`, "engine_too_old"},
		{"0.31.0", responsesPath, `"input":"` + long + `","max_output_tokens":9,"truncation":null`, "engine_too_old"},
		{"0.31.0", responsesPath, `"input":"` + short + `","max_output_tokens":9,"truncation":"auto"`, ""},
		{"0.31.0", responsesPath, `"input":"` + short + `","max_output_tokens":599,"truncation":"disabled"`, ""},
		{"0.32.0", completionsPath, `"prompt":"` + long + `","max_tokens":9,"truncate_prompt_tokens":-1`, ""},
		{"0.32.0", chatPath, `"messages":[{"role":"user","content":"` + long + `"}],"max_tokens":9,"truncate_prompt_tokens":-1`, ""},
		{"0.32.0", responsesPath, `"input":"` + long + `","max_output_tokens":9,"truncation":"auto"`, ""},
	} {
		r := start(t, fakevllm.NIXL, 0, 0, nil)
		var both [2]*instance.Instance
		for i, role := range []instance.Role{instance.Prefill, instance.Decode} {
			s := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.Role(role), Mode: fakevllm.NIXL, Models: []string{model}, Version: tc.version, MaxModelLen: context})
			both[i] = instanceOf(role, s, fakevllm.NIXL)
			both[i].Record.Version, both[i].Record.MaxModelLen = tc.version, context
		}
		r.members.set(both[0], both[1])
		a := r.post(tc.path, `{"model":"m",`+tc.body+`}`)
		e := r.entry()
		assert.True(t, a.status == http.StatusOK && e.DecodeOnly == tc.decodeOnly && e.Failed == 0,
			"%s %.60s: %d, decode-only %q after %d failed legs: %s", tc.version, tc.body, a.status, e.DecodeOnly, e.Failed, a.body)
	}
}

// Prefill ends by length, although the client's answer stops at its first token: else many connectors transfer
// nothing.
func TestStopAtFirstToken(t *testing.T) {
	t.Parallel()
	for path, fields := range map[string]string{
		completionsPath: `"prompt":"x","max_tokens":9`, chatPath: `"messages":[{"role":"user","content":"x"}],"max_tokens":9`, responsesPath: `"input":"x","max_output_tokens":9`,
	} {
		body := `{"model":"m",` + fields + `,"stop_token_ids":[`
		whole, err := fakevllm.ExpectedAt(path, []byte(body+`]}`), 0)
		require.NoError(t, err)
		for _, mode := range []fakevllm.Mode{fakevllm.Ascend, fakevllm.Mooncake} {
			r := start(t, mode, 1, 1, nil)
			a := r.post(path, fmt.Sprintf("%s%d]}", body, whole[0].Tokens[0]))
			e := r.entry()
			assert.True(t, a.status == http.StatusOK && e.DecodeOnly == "", "%s: %d, decode-only %q: %s", path, a.status, e.DecodeOnly, a.body)
		}
	}
}

// A request with an image goes through a pair, and is counted.
func TestMediaIsCounted(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	for _, content := range []string{`"hi"`, `[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:,"}}]`} {
		r.post("/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":`+content+`}],"max_tokens":2}`)
	}
	n := legs(r.P)
	assert.True(t, n == 2 && r.rec.media == 1, "%d prefills, %d with media", n, r.rec.media)
}
