package fakevllm_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

const prefillForm = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// prefill runs the prefill leg and returns the raw transfer params.
func prefill(t *testing.T, s *fakevllm.Server, id, ask string) string {
	t.Helper()
	r := decode(t, post(t, client(t), s.URL()+"/v1/chat/completions", id,
		`{`+ask+`,"max_tokens":1,"min_tokens":1,"ignore_eos":true,"stream":false,"kv_transfer_params":`+prefillForm+`}`))
	require.Equal(t, "length", r.Choices[0].FinishReason, "prefill ended by")
	return string(r.KV)
}

// pair starts a prefill and a decode engine that know nothing of each other
// but what is in the requests, as in two processes.
func pair(t *testing.T, p, d fakevllm.Options) (*fakevllm.Server, *fakevllm.Server) {
	t.Helper()
	for _, o := range []*fakevllm.Options{&p, &d} {
		if o.Mode == "" {
			o.Mode = fakevllm.NIXL
		}
	}
	p.Role, d.Role = fakevllm.RolePrefill, fakevllm.RoleDecode
	return fakevllm.StartTest(t, p), fakevllm.StartTest(t, d)
}

func TestKVTransfer(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{true, false} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("shared %v stream %v", shared, stream), func(t *testing.T) {
				t.Parallel()
				var o fakevllm.Options
				if shared {
					o.Shared = fakevllm.NewShared()
				}
				o.StrictPrefill, o.PromptTokensDetails = true, true
				p, d := pair(t, o, o)
				expected := fakevllm.ExpectedChat([]fakevllm.Message{{Role: "user", Content: "hi"}}, fakevllm.Sampling{MaxTokens: 9})
				for i := range 3 {
					id := fmt.Sprintf("R %d+\"", i)
					kv := prefill(t, p, id, user)
					assert.NoError(t, want("waiting", p.Counters().TransfersWaiting, 1))
					r := post(t, client(t), d.URL()+"/v1/chat/completions", id, fmt.Sprintf(`{%s,"max_tokens":9,"stream":%v,"kv_transfer_params":%s}`, user, stream, kv))
					if stream {
						if got, _ := text(events(t, r.body), 0); got != expected.Text {
							t.Errorf("got %q, expected %q", got, expected.Text)
						}
						continue
					}
					got := decode(t, r)
					if got.Choices[0].Message.Content != expected.Text || string(got.KV) != "null" || got.Usage.Details.Cached != expected.PromptTokens-1 {
						t.Errorf("got %s", r.body)
					}
				}
				pc, dc := p.Counters(), d.Counters()
				if pc.TransfersMade != 3 || pc.TransfersWaiting != 0 || pc.LocalPrefills != 0 || dc.TransfersLoaded != 3 ||
					dc.LocalPrefills != 0 || dc.TransfersRefused != 0 || dc.BadParams != 0 || dc.KVParams != 3 {
					t.Errorf("prefill %+v, decode %+v", pc, dc)
				}
				assert.Len(t, append(p.Violations(), d.Violations()...), 0, "violations")
			})
		}
	}
}

// TestKVTransfer_Refused: whatever is wrong, the decode fails inside its 200 when
// it streams, with a 500 when it does not.
func TestKVTransfer_Refused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		spoil  func(t *testing.T, p *fakevllm.Server, kv string) string // returns the kv to send
		id     string                                                   // of the decode, default that of the prefill
		ask    string                                                   // default that of the prefill
		reason string
	}{
		{name: "used", reason: "fetched already", spoil: func(t *testing.T, p *fakevllm.Server, kv string) string {
			other := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.NIXL})
			post(t, client(t), other.URL()+"/v1/chat/completions", "R", `{`+user+`,"kv_transfer_params":`+kv+`}`)
			return kv
		}},
		{name: "another prompt", reason: "another prompt", ask: `"messages":[{"role":"user","content":"ho"}]`},
		{name: "another request", reason: "another request id", id: "S"},
		{name: "invented", reason: "unknown request id", spoil: func(_ *testing.T, _ *fakevllm.Server, kv string) string {
			return strings.Replace(kv, "chatcmpl-R-", "chatcmpl-R-0", 1)
		}},
		{name: "foreign engine", reason: "not of this incarnation", spoil: func(_ *testing.T, p *fakevllm.Server, kv string) string {
			return strings.Replace(kv, p.EngineID(), "another-engine", 1)
		}},
		{name: "restarted engine", reason: "side channel failed", spoil: func(t *testing.T, p *fakevllm.Server, kv string) string {
			p.Kill()
			require.NoError(t, p.Restart(t.Context()))
			return kv
		}},
		{name: "dead engine", reason: "side channel failed", spoil: func(_ *testing.T, p *fakevllm.Server, kv string) string {
			p.Kill() // another party may be given its port
			return strings.Replace(kv, fmt.Sprintf(`"remote_port":%d`, p.SideChannel()), `"remote_port":1`, 1)
		}},
		{name: "integer through a float", reason: "came back changed", spoil: func(t *testing.T, _ *fakevllm.Server, kv string) string {
			i := strings.Index(kv, `"remote_kv_token":`) + len(`"remote_kv_token":`)
			return kv[:i] + "9" + kv[i+1:]
		}},
		{name: "fields re-encoded", reason: "came back changed", spoil: func(_ *testing.T, _ *fakevllm.Server, kv string) string {
			return strings.Replace(kv, `"ratio":1.0`, `"ratio":1`, 1)
		}},
		{name: "unknown field dropped", reason: "came back changed", spoil: func(_ *testing.T, _ *fakevllm.Server, kv string) string {
			return strings.Replace(kv, `"x_transfer_hints"`, `"x_other"`, 1)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, stream := range []bool{true, false} {
				p, d := pair(t, fakevllm.Options{}, fakevllm.Options{})
				kv := prefill(t, p, "R", user)
				if tt.spoil != nil {
					kv = tt.spoil(t, p, kv)
				}
				id, ask := tt.id, tt.ask
				if id == "" {
					id = "R"
				}
				if ask == "" {
					ask = user
				}
				r := post(t, client(t), d.URL()+"/v1/chat/completions", id, fmt.Sprintf(`{%s,"max_tokens":3,"stream":%v,"kv_transfer_params":%s}`, ask, stream, kv))
				counted := d.Counters()
				if reasons := d.Refusals(); len(reasons) != 1 || !strings.Contains(reasons[0], tt.reason) || counted.TransfersRefused != 1 {
					t.Errorf("refusals %q, not for %q", reasons, tt.reason)
				}
				switch {
				case stream:
					list := events(t, r.body)
					const expected = `{"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}`
					if r.status != 200 || len(list) != 2 || list[0].Choices[0].Delta.Role != "assistant" || string(list[1].Error) != expected {
						t.Errorf("%d %s", r.status, r.body)
					}
				default:
					const expected = `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`
					assert.True(t, r.status == 500 && r.body == expected, "%d %s", r.status, r.body)
				}
				assert.True(t, counted.Failed == 1 && counted.GenerationTokens == 0, "%+v", counted)
			}
		})
	}
}

// A load that ends because the client has left is no refusal.
func TestKVTransfer_ClientLeaves(t *testing.T) {
	t.Parallel()
	p, d := pair(t, fakevllm.Options{}, fakevllm.Options{})
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	kv := strings.Replace(prefill(t, p, "R", user), fmt.Sprintf(`"remote_port":%d`, p.SideChannel()), fmt.Sprintf(`"remote_port":%d`, silent.Addr().(*net.TCPAddr).Port), 1)
	c := dialRaw(t, d)
	c.send(t, "/v1/chat/completions", "R", `{`+user+`,"max_tokens":3,"kv_transfer_params":`+kv+`}`)
	asked, err := silent.Accept()
	require.NoError(t, err)
	defer asked.Close()
	require.NoError(t, c.conn.Close())
	eventually(t, func() error { return want("aborted", d.Counters().Aborted, 1) })
	assert.Empty(t, d.Refusals())
}

// After the lease the blocks hold something else. A pull reads it without an error, and
// the answer is wrong.
func TestPullAfterTheLease(t *testing.T) {
	t.Parallel()
	p, d := pair(t, fakevllm.Options{KVLease: time.Nanosecond}, fakevllm.Options{})
	body := `{` + user + `,"max_tokens":3,"kv_transfer_params":` + prefill(t, p, "R", user) + `}`
	late := post(t, client(t), d.URL()+"/v1/chat/completions", "R", body)
	right := post(t, client(t), d.URL()+"/v1/chat/completions", "R", `{`+user+`,"max_tokens":3}`)
	if late.status != 200 || right.status != 200 || decode(t, late).Choices[0].Message.Content == decode(t, right).Choices[0].Message.Content {
		t.Errorf("%s\n%s", late.body, right.body)
	}
	if n, why := d.Counters(), d.Refusals(); n.WrongKV != 1 || n.TransfersRefused != 0 || len(why) != 1 || !strings.HasSuffix(why[0], ": the answer is wrong") {
		t.Errorf("%+v, %q", n, why)
	}
}

// A decode engine that refuses a request has prefill free its blocks, since 0.21.
func TestRefusalFrees(t *testing.T) {
	t.Parallel()
	for version, freed := range map[string]bool{"0.20.2": false, "0.21.0": true, "0.32.0": true} {
		for _, shared := range []*fakevllm.Shared{nil, fakevllm.NewShared()} {
			p, d := pair(t, fakevllm.Options{Version: version, Shared: shared}, fakevllm.Options{Version: version, Shared: shared})
			kv := prefill(t, p, "R", user)
			if r := post(t, client(t), d.URL()+"/v1/chat/completions", "R", `{`+user+`,"temperature":9,"kv_transfer_params":`+kv+`}`); r.status != 400 {
				t.Fatalf("%d %s", r.status, r.body)
			}
			post(t, client(t), d.URL()+"/v1/chat/completions", "R", `{`+user+`,"kv_transfer_params":`+kv+`}`)
			if n := d.Counters(); (n.TransfersRefused == 1) != freed || (n.TransfersLoaded == 1) == freed {
				t.Errorf("%s: %+v, %q", version, n, d.Refusals())
			}
		}
	}
}

// Engines of two versions do not transfer KV caches.
func TestVersionsOfAPair(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		decode  string
		refused int64
	}{{"0.32.0", 0}, {"0.31.0", 1}} {
		p, d := pair(t, fakevllm.Options{Version: "0.32.0"}, fakevllm.Options{Version: tt.decode})
		post(t, client(t), d.URL()+"/v1/chat/completions", "R", `{`+user+`,"kv_transfer_params":`+prefill(t, p, "R", user)+`}`)
		if n := d.Counters(); n.TransfersRefused != tt.refused || n.TransfersLoaded != 1-tt.refused {
			t.Errorf("%+v: %+v, %q", tt, n, d.Refusals())
		}
	}
}

// In push mode prefill knows decode by the id and the kind of the route, and a field
// that is missing ends the engine.
func TestPush(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, id, path string
		spoil          func(kv string) string
		loaded, dead   int64
	}{
		{name: "whole", id: "R", path: "/v1/chat/completions", loaded: 1},
		{name: "another id", id: "S", path: "/v1/chat/completions"},
		{name: "another route", id: "R", path: "/v1/completions"},
		{name: "no tp_size", id: "R", path: "/v1/chat/completions", dead: 1, spoil: func(kv string) string { return strings.Replace(kv, `"tp_size":1,`, "", 1) }},
		{name: "no blocks", id: "R", path: "/v1/chat/completions", loaded: 1, spoil: func(kv string) string {
			return strings.Replace(kv, `"remote_block_ids"`, `"some_block_ids"`, 1)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, d := pair(t, fakevllm.Options{Mode: fakevllm.NIXLPush}, fakevllm.Options{Mode: fakevllm.NIXLPush})
			kv := prefill(t, p, "R", user)
			if tt.spoil != nil {
				kv = tt.spoil(kv)
			}
			ask := user
			if tt.path == "/v1/completions" {
				ask = `"prompt":"hi"`
			}
			post(t, client(t), d.URL()+tt.path, tt.id, `{`+ask+`,"kv_transfer_params":`+kv+`}`)
			if n := d.Counters(); n.TransfersLoaded != tt.loaded || n.Crashes != tt.dead {
				t.Errorf("%+v, %q", n, d.Refusals())
			}
		})
	}
}

// vllm-ascend's connector hands over only what has ended by length.
func TestAscend(t *testing.T) {
	t.Parallel()
	p, d := pair(t, fakevllm.Options{Mode: fakevllm.Ascend}, fakevllm.Options{Mode: fakevllm.Ascend})
	kv := prefill(t, p, "R", user)
	if !strings.Contains(kv, `"remote_block_size":[16]`) || !strings.Contains(kv, `"num_prompt_blocks":1`) || strings.Contains(kv, "transfer_mode") {
		t.Errorf("it hands over %s", kv)
	}
	post(t, client(t), d.URL()+"/v1/chat/completions", "R", `{`+user+`,"kv_transfer_params":`+kv+`}`)
	if n := d.Counters(); n.TransfersLoaded != 1 || n.LocalPrefills != 0 {
		t.Errorf("%+v, %q", n, d.Refusals())
	}
}

// The P2P tier keeps blocks under the proxy's id, once, and refuses what comes late.
func TestP2P(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keep, fetch        string
		lease                    time.Duration
		loaded, refused, locally int64
	}{
		{name: "whole", keep: "x", fetch: "x", loaded: 1},
		{name: "another id", keep: "x", fetch: "y", refused: 1},
		{name: "too late", keep: "x", fetch: "x", lease: time.Nanosecond, refused: 1},
		{name: "no id", keep: "x", locally: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, d := pair(t, fakevllm.Options{Mode: fakevllm.P2P, KVLease: tt.lease}, fakevllm.Options{Mode: fakevllm.P2P})
			first := post(t, client(t), p.URL()+"/v1/chat/completions", "R", `{`+user+`,"max_tokens":1,"kv_transfer_params":{"remote_decoder":{"kv_request_id":"`+tt.keep+`"}}}`)
			require.True(t, first.status == 200 && strings.Contains(first.body, `"kv_transfer_params":null`),
				"%d %s", first.status, first.body)
			post(t, client(t), d.URL()+"/v1/chat/completions", "R",
				fmt.Sprintf(`{%s,"kv_transfer_params":{"remote_prefiller":{"kv_request_id":%q,"remote_host":"127.0.0.1","remote_port":%d}}}`, user, tt.fetch, p.SideChannel()))
			if n := d.Counters(); n.TransfersLoaded != tt.loaded || n.TransfersRefused != tt.refused || n.LocalPrefills != tt.locally || n.WrongKV != 0 {
				t.Errorf("%+v, %q", n, d.Refusals())
			}
		})
	}
}

func TestLeaseEnds(t *testing.T) {
	t.Parallel()
	p, _ := pair(t, fakevllm.Options{KVLease: time.Millisecond}, fakevllm.Options{})
	prefill(t, p, "R", user)
	eventually(t, func() error {
		if c := p.Counters(); c.TransfersWaiting != 0 || c.TransfersExpired != 1 {
			return fmt.Errorf("%d wait, %d expired", c.TransfersWaiting, c.TransfersExpired)
		}
		return nil
	})
}

func TestPrefill_NoTransferParams(t *testing.T) {
	t.Parallel()
	// The first token of this prompt is a stop token of the request.
	first := fakevllm.ExpectedText("x", fakevllm.Sampling{MaxTokens: 1}).Tokens[0]
	stop := fmt.Sprintf(`{"prompt":"x","max_tokens":1,"stop_token_ids":[%d],"kv_transfer_params":%s}`, first, prefillForm)
	for _, tt := range []struct {
		name, body string
		o          fakevllm.Options
		kv         bool
		bad        int64
	}{
		{"length", `{"prompt":"x","max_tokens":1,"kv_transfer_params":` + prefillForm + `}`, fakevllm.Options{}, true, 0},
		{"stop", stop, fakevllm.Options{}, true, 0},
		{"stop where only length counts", stop, fakevllm.Options{Mode: fakevllm.Ascend}, false, 0},
		{"not asked for", `{"prompt":"x","max_tokens":1}`, fakevllm.Options{}, false, 0},
		{"wrong form", `{"prompt":"x","max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}}`, fakevllm.Options{}, false, 1},
		{"streamed", `{"prompt":"x","max_tokens":1,"stream":true,"kv_transfer_params":` + prefillForm + `}`, fakevllm.Options{}, false, 0},
		{"two prompts: the first only", `{"prompt":["x","y"],"max_tokens":1,"kv_transfer_params":` + prefillForm + `}`, fakevllm.Options{}, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.o.Role = fakevllm.RolePrefill; tt.o.Mode == "" {
				tt.o.Mode = fakevllm.NIXL
			}
			s := fakevllm.StartTest(t, tt.o)
			r := post(t, client(t), s.URL()+"/v1/completions", "R", tt.body)
			got := strings.Contains(r.body, `"remote_request_id":"cmpl-R-`)
			assert.True(t, got == tt.kv && r.status == 200, "transfer params %v, not %v: %d %s", got, tt.kv, r.status, r.body)
			c := s.Counters()
			assert.True(t, c.BadParams == tt.bad && int64(len(s.BadParams())) == tt.bad && c.LocalPrefills == 0, "%+v", c)
		})
	}
}

func TestDecode_NoTransferParams(t *testing.T) {
	t.Parallel()
	p, d := pair(t, fakevllm.Options{}, fakevllm.Options{})
	kv := prefill(t, p, "R", user)
	c := client(t)
	for i, tt := range []struct {
		name, body    string
		local, bad    int64
		crash, status int
	}{
		{"nothing", `{` + user + `}`, 1, 0, 0, 200},
		{"empty object", `{` + user + `,"kv_transfer_params":{}}`, 1, 0, 0, 200},
		{"missing fields", `{` + user + `,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false}}`, 1, 1, 0, 200},
		{"both true", `{` + user + `,"kv_transfer_params":` + strings.Replace(kv, `"do_remote_decode":false`, `"do_remote_decode":true`, 1) + `}`, 1, 1, 0, 200},
		{"n 2 crashes", `{` + user + `,"n":2,"kv_transfer_params":` + kv + `}`, 0, 0, 1, 500},
		{"prompt_logprobs crashes", `{` + user + `,"prompt_logprobs":1,"kv_transfer_params":` + kv + `}`, 0, 0, 1, 500},
	} {
		before := d.Counters()
		r := post(t, c, d.URL()+"/v1/chat/completions", "R", tt.body)
		after := d.Counters()
		if r.status != tt.status || after.LocalPrefills-before.LocalPrefills != tt.local || after.BadParams-before.BadParams != tt.bad ||
			after.Crashes-before.Crashes != int64(tt.crash) {
			t.Errorf("%d %s: %d %s, %+v", i, tt.name, r.status, r.body, after)
		}
	}
	// None of these fetched the blocks.
	if r := decode(t, post(t, c, d.URL()+"/v1/chat/completions", "R", `{`+user+`,"kv_transfer_params":`+kv+`}`)); r.ID != "chatcmpl-R" || d.Counters().TransfersLoaded != 1 {
		t.Errorf("%+v", d.Counters())
	}
}

func TestPlainPool(t *testing.T) {
	t.Parallel()
	shared := fakevllm.NewShared()
	p := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RolePrefill, Shared: shared, StrictPrefill: true})
	d := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RoleDecode, Shared: shared, PromptTokensDetails: true})
	c := client(t)
	long := strings.Repeat("a ", 40)
	decode(t, post(t, c, p.URL()+"/v1/completions", "R", `{"prompt":"`+long+`","max_tokens":1}`))
	r := decode(t, post(t, c, d.URL()+"/v1/completions", "R", `{"prompt":"`+long+`","kv_transfer_params":{"do_remote_prefill":1}}`))
	if got := d.Counters(); got.LocalPrefills != 0 || got.KVParams != 1 || got.BadParams != 0 || r.Usage.Details.Cached != (r.Usage.Prompt-1)/16*16 {
		t.Errorf("%+v, %+v", got, r.Usage)
	}
	decode(t, post(t, c, d.URL()+"/v1/completions", "R", `{"prompt":"never seen"}`))
	got := d.Counters()
	assert.EqualValues(t, 1, got.LocalPrefills, "%+v", got)
	assert.Len(t, p.Violations(), 0, "violations")
	for _, body := range []string{`{"prompt":"x"}`, `{"prompt":"x","max_tokens":1,"stream":true}`, `{"prompt":"x","max_tokens":1,"n":2}`} {
		before := len(p.Violations())
		post(t, c, p.URL()+"/v1/completions", "R", body)
		assert.NotEqual(t, before, len(p.Violations()), "%s is no violation on a prefill engine", body)
	}
}
