package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// aloneCase is a decode-only request and its engines, which serve a separate model. Without engines, the
// request uses those of the model "good".
type aloneCase struct {
	reason, path, body string
	prefill, decode    string // versions of the engines, "0.32.0" if empty
	// members of the engines' records besides models and version; empty for engines without records
	prefillRecord, decodeRecord string
	fault, decodeFault          fakevllm.Fault // of the prefill and the decode engine
	withoutPrefill, refused     bool           // refused: the simulated engine answers with a status other than 200
	both                        bool           // one engine in both roles
}

// pairs reports whether the pair of engines is usable, and the reason for decode-only is not a failed leg.
func (c aloneCase) pairs() bool {
	return c.prefillRecord == "" && c.decodeFault.Kind == "" && c.reason != bypass.PrefillFailed
}

func aloneCases() []aloneCase {
	const (
		chat      = `"messages":[{"role":"user","content":"tell me of the sea"}],"max_tokens":4`
		input     = `"input":"tell me of the sea","max_output_tokens":4`
		functions = `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}],"tool_choice":"required"`
	)
	const completions, chats, responses, messages = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
	const push, receiver = `"connector":"nixl_push"`, `"connector":"lmcache","ports":{"lmcache_init":[1],"lmcache_alloc":[1]}`
	fails := fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500}
	return []aloneCase{
		{reason: bypass.SeveralPrompts, path: completions, body: `"prompt":["a","b"],"max_tokens":2`},
		{reason: bypass.N, path: chats, body: chat + `,"n":2,"temperature":1`},
		{reason: bypass.BestOf, path: completions, body: `"prompt":"a","max_tokens":2,"best_of":2,"temperature":1`},
		{reason: bypass.BeamSearch, path: completions, body: `"prompt":"a","max_tokens":2,"use_beam_search":true`, refused: true},
		{reason: bypass.Echo, path: completions, body: `"prompt":"a","max_tokens":2,"echo":true`},
		{reason: bypass.Echo, path: completions, body: `"prompt":"a","max_tokens":0,"echo":true,"logprobs":1`},
		{reason: bypass.PromptLogprobs, path: completions, body: `"prompt":"a","max_tokens":2,"prompt_logprobs":1`},
		{reason: bypass.EngineTools, path: responses, body: input + `,"tools":[{"type":"code_interpreter","container":{"type":"auto"}}]`},
		{reason: bypass.Background, path: responses, body: input + `,"background":true`, refused: true},
		{reason: bypass.StoredResponse, path: responses, body: input + `,"previous_response_id":"resp_1"`, refused: true},
		{reason: bypass.Route, path: "/v1/chat/completions/batch", body: chat, refused: true},
		{reason: bypass.Route, path: "/cohere/v2/chat", body: chat, refused: true},
		{reason: bypass.ForcedTool, path: chats, body: strings.Replace(chat, `"max_tokens":4`, `"max_tokens":400`, 1) + functions},
		{reason: bypass.ForcedTool, path: messages, body: strings.Replace(chat, `"max_tokens":4`, `"max_tokens":99`, 1) + `,"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"}`},
		{reason: bypass.ForcedTool, path: responses, body: strings.Replace(input, `tokens":4`, `tokens":99`, 1) + `,"tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"f"}`, fault: fails},
		{reason: bypass.ThinkingBudget, path: messages, body: chat + `,"thinking":{"type":"enabled","budget_tokens":9}`, fault: fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 400}},
		{reason: bypass.MessagesNeedLength, path: messages, body: chat, prefill: "0.20.1", decode: "0.20.1"},
		{reason: bypass.EngineTooOld, path: responses, body: input, prefill: "0.18.2", decode: "0.18.2"},
		{reason: bypass.EngineTooOld, path: messages, body: chat, prefill: "0.18.2", decode: "0.18.2"},
		{reason: bypass.VersionMismatch, path: chats, body: chat, prefill: "0.31.0"},
		{reason: bypass.VersionMismatch, path: messages, body: chat + `,"stream":true`, prefill: "0.32.0", decode: "0.31.0"},
		{reason: bypass.BlockMismatch, path: chats, body: chat, prefillRecord: `"connector":"p2p","ports":{"p2p":[1]},"block_size":16`, decodeRecord: `"connector":"p2p","block_size":32`},
		{reason: bypass.ConnectorMismatch, path: messages, body: chat, prefillRecord: `"connector":"plain"`},
		{reason: bypass.SameInstance, path: chats, body: chat, both: true},
		{reason: bypass.SameInstance, path: responses, body: input + `,"stream":true`, both: true},
		{reason: bypass.ResponsesOwnID, path: responses, body: input, prefillRecord: push, decodeRecord: push},
		{reason: bypass.RanksDiffer, path: chats, body: chat, prefillRecord: `"connector":"lmcache","tp_size":2,"ports":{"lmcache_notify":[1]}`, decodeRecord: receiver},
		{reason: bypass.NotHeard, path: chats, body: chat, prefillRecord: `"connector":"lmcache"`, decodeRecord: receiver},
		{reason: bypass.NotNotified, path: chats, body: chat, prefillRecord: `"connector":"lmcache","ports":{"lmcache_notify":[1]}`, decodeRecord: receiver}, // no agent listens on that port
		{reason: bypass.LeaseEnded, path: chats, body: chat + `,"stream":true`, prefill: "0.21.0", decode: "0.21.0", prefillRecord: `"connector":"nixl","kv_lease":2`,
			decodeFault: fakevllm.Fault{Kind: fakevllm.FaultHang, Path: chats, At: fakevllm.AfterHeaders, Times: 3}},
		{reason: bypass.TransferLost, path: chats, body: chat, prefill: "0.32.0", decodeFault: fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500, Path: chats, Times: 2}},
		{reason: bypass.NoTransfer, path: completions, body: `"prompt":"a","max_tokens":2`, fault: fakevllm.Fault{Kind: fakevllm.FaultNoKV}},
		{reason: bypass.NoTransfer, path: messages, body: chat + `,"stream":true`, fault: fakevllm.Fault{Kind: fakevllm.FaultNoKV}},
		{reason: bypass.NoTransfer, path: responses, body: input, fault: fakevllm.Fault{Kind: fakevllm.FaultNoKV}},
		{reason: bypass.NoPrefill, path: chats, body: chat + `,"stream":true`, withoutPrefill: true},
		{reason: bypass.NoPrefill, path: responses, body: input + `,"stream":true`, withoutPrefill: true},
		{reason: bypass.PrefillFailed, path: chats, body: chat, fault: fails},
		{reason: bypass.PrefillFailed, path: messages, body: chat + `,"stream":true`, fault: fails},
		{reason: bypass.PrefillFailed, path: responses, body: input + `,"stream":true`, fault: fails},
	}
}

// Every decode-only request reports its reason: the response header, the access log and the metric
// have the same reason, on every route that generates, and each reason has a case.
func TestDecodeOnly_ReasonReported(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	f := newFleet(t)
	proxy, err := f.StartProxy(ctx, fleet.ProxySpec{Name: "proxy", AdminKey: adminKey, Args: []string{"--connector", "nixl", "--log-format", "json", "--retry-budget", "100"}})
	require.NoError(t, err)
	prefills, decodes := 0, 0
	register := func(role instance.Role, address, value string) {
		require.NoError(t, gatewayPut(ctx, proxy.Etcd[0], "/pd/"+string(role)+"/"+address, value))
		if role == instance.Prefill {
			prefills++
		} else {
			decodes++
		}
	}
	engine := func(role instance.Role, model, version, record string) *fakevllm.Server {
		if version == "" {
			version = "0.32.0"
		}
		plays := fakevllm.Role(role)
		if role == instance.Both {
			plays = "" // serves any request
		}
		s := fakevllm.StartTest(t, fakevllm.Options{Role: plays, Mode: fakevllm.NIXL, Models: []string{model}, Version: version, StrictPrefill: true})
		value := ""
		if record != "" {
			value = fmt.Sprintf(`{"models":[%q],"version":%q,%s}`, model, version, record)
		}
		for _, k := range (instance.Key{Role: role, Address: s.Address()}).Each() {
			register(k.Role, k.Address, value)
		}
		return s
	}
	goodPrefill, goodDecode := engine(instance.Prefill, "good", "", ""), engine(instance.Decode, "good", "", "")
	cases := aloneCases()
	models, engines := make([]string, len(cases)), make([][]*fakevllm.Server, len(cases))
	forced := int64(0) // requests whose prefill leg the engine refuses, of the model "good"
	for i, c := range cases {
		models[i], engines[i] = "good", []*fakevllm.Server{goodPrefill, goodDecode}
		if c.prefill+c.decode+c.prefillRecord == "" && c.fault.Kind == "" && !c.withoutPrefill && !c.both {
			if c.reason == bypass.ForcedTool {
				forced++
			}
			continue
		}
		models[i] = fmt.Sprintf("model-%d", i)
		if c.both {
			engines[i] = []*fakevllm.Server{engine(instance.Both, models[i], "", "")}
			continue
		}
		d := engine(instance.Decode, models[i], c.decode, c.decodeRecord)
		engines[i] = []*fakevllm.Server{d}
		if c.decodeFault.Kind != "" {
			require.NoError(t, d.Script(c.decodeFault))
		}
		if c.withoutPrefill {
			continue
		}
		p := engine(instance.Prefill, models[i], c.prefill, c.prefillRecord)
		engines[i] = append(engines[i], p)
		if c.fault.Kind != "" {
			require.NoError(t, p.Script(c.fault))
		}
	}
	require.NoError(t, proxy.WaitFor(ctx, prefills, decodes))

	counts, wanted := map[string]float64{}, map[string]string{}
	for i, c := range cases {
		id := fmt.Sprintf("alone-%d", i)
		wanted[id] = c.reason
		resp, body := posted(t, proxy.URL()+c.path, id, `{"model":"`+models[i]+`",`+c.body+`}`)
		assert.False(t, resp.StatusCode != http.StatusOK && !c.refused,
			"%s on %s: %s: %s", c.reason, c.path, resp.Status, body)
		if got := resp.Header.Get("X-PD-Decode-Only"); got != c.reason || resp.Header.Get("X-PD-Decode") != "" {
			t.Errorf("%s on %s: the response headers are %v", c.reason, c.path, resp.Header)
		}
		if c.reason == bypass.ForcedTool && strings.HasSuffix(c.path, "/chat/completions") && !strings.Contains(body, `"tool_calls":[{`) {
			t.Errorf("no tool call: %s", body)
		}
		counts[c.reason]++
		counted := func() float64 {
			return metric(t, proxy.URL(), "pd_forward_decode_only_total", fmt.Sprintf("reason=%q", c.reason))
		}
		testkit.EventuallyEqual(t, soon, counted, counts[c.reason], c.reason, " on ", c.path) // after the last byte
	}
	for i, c := range cases {
		if c.pairs() {
			checkNoneTroubled(t, proxy, c, engines[i])
		}
	}
	if n := goodPrefill.Counters(); n.Requests != forced {
		t.Errorf("the prefill engine of requests without prefill has received %d requests, want the %d with a forced tool", n.Requests, forced)
	}
	countDecisions(t, f, counts)
	for _, r := range bypass.Reasons() {
		assert.True(t, counts[r.Name] != 0, "no case has the reason %s", r.Name)
	}

	testkit.Eventually(t, soon, func() error { return logged(proxy.LogFile(), wanted) })
	checkNotices(t, proxy, models[slices.IndexFunc(cases, func(c aloneCase) bool { return c.reason == bypass.NoTransfer })])
}

// checkNoneTroubled checks that the engines of a case got no request that would harm them, loaded no KV
// cache, and are not blamed for any failure.
func checkNoneTroubled(t *testing.T, proxy *fleet.Proxy, c aloneCase, engines []*fakevllm.Server) {
	t.Helper()
	for _, s := range engines {
		n := s.Counters()
		assert.True(t, len(s.Violations())+len(s.BadParams()) <= 0 && n.Crashes+n.TransfersLoaded <= 0,
			"%s on %s: %q, %q, %+v", c.reason, c.path, s.Violations(), s.BadParams(), n)
		label := fmt.Sprintf("instance=%q", s.Address())
		failed := metric(t, proxy.URL(), "pd_instance_failures_total", label)
		for _, class := range []string{"our_edit", "status_4xx", "model_missing"} { // not the engine's fault
			failed -= metric(t, proxy.URL(), "pd_instance_failures_total", label, fmt.Sprintf("class=%q", class))
		}
		assert.True(t, failed == 0, "%s on %s: %s is blamed for %v failures", c.reason, c.path, s.Address(), failed)
	}
}

// countDecisions counts the reasons of proxies that may skip prefill. A slow prefill engine has a queue when
// many requests arrive at once. Each round uses new prompts, because prompts in the engine's cache
// are prefilled quickly; the other prompts are repeated. The decode engine computes more slowly. Otherwise, on
// a busy machine, the second leg takes longer than any prompt, and decode-only is faster without a queue, too.
func countDecisions(t *testing.T, f *fleet.Fleet, counts map[string]float64) {
	t.Helper()
	const model = "decided"
	engine := func(role fakevllm.Role, rate float64) string {
		return fakevllm.StartTest(t, fakevllm.Options{Role: role, Mode: fakevllm.NIXL, Models: []string{model}, Version: "0.32.0", PrefillRate: rate}).Address()
	}
	prefill, decode := engine(fakevllm.RolePrefill, 2000), engine(fakevllm.RoleDecode, 1000)
	text := strings.Repeat("the sea ", 30)
	fresh := 0
	for _, value := range []string{"auto", "never"} {
		proxy, err := f.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy-" + value, Args: []string{
			"--connector", "nixl", "--disaggregate", value, "--prefill", prefill, "--decode", decode,
		}})
		require.NoError(t, err)
		require.NoError(t, proxy.WaitFor(t.Context(), 1, 1))
		wanted := []string{bypass.Never}
		if value == "auto" {
			wanted = []string{bypass.Explore, bypass.SmallUncached, bypass.PrefillQueue}
		}
		testkit.Eventually(t, soon, func() error {
			var all sync.WaitGroup
			for i := range 36 {
				prompt := text
				if i%3 != 0 {
					fresh++
					prompt = strings.Repeat(fmt.Sprintf("sea %d ", fresh), 100)
				}
				all.Go(func() {
					resp, body := posted(t, proxy.URL()+"/v1/completions", "", `{"model":"`+model+`","prompt":"`+prompt+`","max_tokens":2,"stream":true}`)
					assert.Equal(t, http.StatusOK, resp.StatusCode, "%s: %s", resp.Status, body)
				})
			}
			all.Wait()
			for _, reason := range wanted {
				label := fmt.Sprintf("reason=%q", reason)
				n := metric(t, proxy.URL(), "pd_forward_decode_only_total", label)
				if counts[reason] = n; n == 0 || n > metric(t, proxy.URL(), "pd_disaggregate_total", label) {
					return fmt.Errorf("--disaggregate %s: %v decode-only requests for %s", value, n, reason)
				}
			}
			return nil
		})
	}
}

// posted sends a request and returns its response and body.
func posted(t *testing.T, url, id, body string) (*http.Response, string) {
	t.Helper()
	resp, text, err := harness.Send(t.Context(), http.MethodPost, url, body, "X-Request-Id", id)
	require.NoError(t, err)
	return resp, text
}

// checkNotices sends more requests to an instance that transfers no KV cache and checks that /status and pdctl
// status report it.
func checkNotices(t *testing.T, proxy *fleet.Proxy, model string) {
	t.Helper()
	for range 5 {
		harness.Post(t, proxy.URL()+"/v1/completions", `{"model":"`+model+`","prompt":"a","max_tokens":2}`)
	}
	reported := func(text string) error {
		for _, want := range []string{"prefill instances are ready, but each of the last ", " no_handover (prefill offered no KV transfer)", "(nixl) has sent no transfer params in its last "} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("%q is not in %s", want, text)
			}
		}
		return nil
	}
	testkit.Eventually(t, soon, func() error {
		var status struct{ Notices []string }
		if err := json.Unmarshal(get(t, proxy.URL()+"/status"), &status); err != nil {
			return err
		}
		return reported(strings.Join(status.Notices, "\n"))
	})
	testkit.Eventually(t, soon, func() error { return reported(runProgram(t, "pdctl", "status", "--etcd-endpoints", proxy.Etcd[0])) })
}

// logged compares the access log with the expected reasons.
func logged(file string, wanted map[string]string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var seen []string
	for line := range bytes.Lines(b) {
		var l struct {
			ID         string `json:"request_id"`
			DecodeOnly string `json:"decode_only"`
			Decode     string `json:"decode"`
			Path       string `json:"path"`
		}
		if json.Unmarshal(line, &l) != nil || wanted[l.ID] == "" || l.Path == "" {
			continue
		}
		if l.DecodeOnly != wanted[l.ID] || l.Decode == "" {
			return fmt.Errorf("%s, decode-only for %s, is logged with %q, decode %q", l.ID, wanted[l.ID], l.DecodeOnly, l.Decode)
		}
		seen = append(seen, l.ID)
	}
	slices.Sort(seen)
	if seen = slices.Compact(seen); len(seen) != len(wanted) {
		return fmt.Errorf("%d of %d requests are logged", len(seen), len(wanted))
	}
	return nil
}
