package fakevllm_test

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// mooncakePair starts a producer and a consumer that know nothing of each other.
func mooncakePair(t *testing.T, p, d fakevllm.Options) (*fakevllm.Server, *fakevllm.Server) {
	t.Helper()
	p.Mode, p.Role, d.Mode, d.Role = fakevllm.Mooncake, fakevllm.RolePrefill, fakevllm.Mooncake, fakevllm.RoleDecode
	return fakevllm.StartTest(t, p), fakevllm.StartTest(t, d)
}

func bootstrapURL(p *fakevllm.Server) string {
	return "http://127.0.0.1:" + strconv.Itoa(p.Bootstrap())
}

// producing and consuming are the kv_transfer_params of the two legs.
func producing(id string) string {
	return fmt.Sprintf(`{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":%q}`, id)
}

func consuming(p *fakevllm.Server, id string) string {
	return fmt.Sprintf(`{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":%q,"remote_engine_id":%q,"transfer_id":%q}`,
		bootstrapURL(p), p.EngineID(), id)
}

// prefillLeg posts a good prefill.
func prefillLeg(t *testing.T, c *http.Client, p *fakevllm.Server, ask, kv string) reply {
	t.Helper()
	return post(t, c, p.URL()+"/v1/chat/completions", "R",
		`{`+ask+`,"max_tokens":1,"min_tokens":1,"ignore_eos":true,"stream":false,"kv_transfer_params":`+kv+`}`, "X-data-parallel-rank", "0")
}

func decodeLeg(t *testing.T, c *http.Client, d *fakevllm.Server, ask, more, kv string) reply {
	t.Helper()
	return post(t, c, d.URL()+"/v1/chat/completions", "R", `{`+ask+`,"max_tokens":9`+more+`,"kv_transfer_params":`+kv+`}`)
}

func expectedHi() string {
	return fakevllm.ExpectedChat([]fakevllm.Message{{Role: "user", Content: "hi"}}, fakevllm.Sampling{MaxTokens: 9}).Text
}

// content is the text of an answer of either form.
func content(t *testing.T, r reply) string {
	t.Helper()
	if strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") {
		s, _ := text(events(t, r.body), 0)
		return s
	}
	return decode(t, r).Choices[0].Message.Content
}

// TestMooncakeAnyOrder: the legs find each other, whichever is first, and the
// bootstrap server is asked once.
func TestMooncakeAnyOrder(t *testing.T) {
	t.Parallel()
	p, d := mooncakePair(t, fakevllm.Options{StrictPrefill: true}, fakevllm.Options{StrictPrefill: true, PromptTokensDetails: true})
	c := client(t)
	for i, stream := range []string{"", `,"stream":true`, "", `,"stream":true`} {
		id := fmt.Sprintf("xfer %d", i)
		var second reply
		var wg sync.WaitGroup
		if i < 2 { // decode first
			wg.Go(func() { second = decodeLeg(t, c, d, user, stream, consuming(p, id)) })
			eventually(t, func() error { return want("waiting for KV", d.Counters().WaitingForKV, 1) })
		}
		first := prefillLeg(t, c, p, user, producing(id))
		r := decode(t, first)
		assert.True(t, string(r.KV) == "null" && r.Choices[0].FinishReason == "length", "the prefill said %s", first.body)
		if i >= 2 {
			second = decodeLeg(t, c, d, user, stream, consuming(p, id))
		}
		wg.Wait()
		assert.Equal(t, expectedHi(), content(t, second), i)
	}
	pc, dc := p.Counters(), d.Counters()
	if pc.TransfersMade != 4 || pc.TransfersWaiting != 0 || pc.ReusedTransfers != 0 || pc.BootstrapQueries != 1 || dc.TransfersLoaded != 4 ||
		dc.LocalPrefills != 0 || dc.WaitingForKV != 0 || dc.WrongKV != 0 || dc.TransfersRefused != 0 {
		t.Errorf("prefill %+v\ndecode %+v", pc, dc)
	}
	assert.Len(t, append(p.Violations(), d.Violations()...), 0, "violations")
}

// TestMooncakeBootstrap: the registry answers in vLLM's form, and has another
// engine id in each life of the engine, on the same port.
func TestMooncakeBootstrap(t *testing.T) {
	t.Parallel()
	p, d := mooncakePair(t, fakevllm.Options{}, fakevllm.Options{})
	assert.Equal(t, 0, d.Bootstrap(), "a consumer has a bootstrap server on port")
	c := client(t)
	query := func() string {
		r := get(t, c, bootstrapURL(p)+"/query")
		require.Equal(t, http.StatusOK, r.status, r.body)
		return r.body
	}
	first := query()
	prefix := `{"0":{"engine_id":"` + p.EngineID() + `","worker_addr":{"0":{"0":"tcp://127.0.0.1:`
	assert.True(t, strings.HasPrefix(first, prefix), "got %s, expected %s...", first, prefix)
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		says                     string
	}{
		{"wrong method", http.MethodPost, "/query", "", 405, `{"detail":"Method Not Allowed"}`},
		{"unknown", http.MethodGet, "/", "", 404, `{"detail":"Not Found"}`},
		{"two slashes", http.MethodGet, "//query", "", 404, `{"detail":"Not Found"}`},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, bootstrapURL(p)+tt.path, strings.NewReader(tt.body))
		require.NoError(t, err)
		r := do(t, c, req)
		assert.True(t, r.status == tt.status && strings.Contains(r.body, tt.says), "%s: %d %s", tt.name, r.status, r.body)
	}
	port := p.Bootstrap()
	if s, err := fakevllm.Start(t.Context(), fakevllm.Options{
		Mode: fakevllm.Mooncake, Role: fakevllm.RolePrefill, BootstrapAddr: strings.TrimPrefix(bootstrapURL(p), "http://"),
	}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("two producers have one port: %v", err)
		s.Close()
	}
	p.Kill()
	require.NoError(t, p.Restart(t.Context()))
	if again := query(); p.Bootstrap() != port || again == first || !strings.Contains(again, p.EngineID()) {
		t.Errorf("port %d after %d, %s", p.Bootstrap(), port, again)
	}
}

// TestMooncakeWrongRole: a leg for the other role kills the engine.
func TestMooncakeWrongRole(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		victim func(p, d *fakevllm.Server) *fakevllm.Server
		kv     func(p *fakevllm.Server) string
	}{
		{"a decode leg at prefill", func(p, _ *fakevllm.Server) *fakevllm.Server { return p }, func(p *fakevllm.Server) string { return consuming(p, "x") }},
		{"a prefill leg at decode", func(_, d *fakevllm.Server) *fakevllm.Server { return d }, func(*fakevllm.Server) string { return producing("x") }},
		{"both asked for at prefill", func(p, _ *fakevllm.Server) *fakevllm.Server { return p }, func(*fakevllm.Server) string {
			return `{"do_remote_decode":true,"do_remote_prefill":true,"transfer_id":"x"}`
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, d := mooncakePair(t, fakevllm.Options{}, fakevllm.Options{})
			victim := tt.victim(p, d)
			died := victim.Died()
			r := dialRaw(t, victim)
			r.send(t, "/v1/chat/completions", "R", `{`+user+`,"kv_transfer_params":`+tt.kv(p)+`}`)
			if got, err := r.rest(); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the connection ended with %v after %q", err, got)
			}
			<-died
			c := victim.Counters()
			assert.True(t, c.Crashes == 1 && c.Violations == 1, "%+v", c)
		})
	}
}

// TestMooncakeLoadFailures: what is known not to come fails the request, inside
// its 200 when it streams.
func TestMooncakeLoadFailures(t *testing.T) {
	t.Parallel()
	const soon = 50 * time.Millisecond
	unused := func(_ *testing.T, _ *http.Client, p *fakevllm.Server) string { return consuming(p, "x") }
	for _, tt := range []struct {
		name   string
		p      fakevllm.Options
		kv     func(t *testing.T, c *http.Client, p *fakevllm.Server) string
		reason string
	}{
		{"an engine that the bootstrap server lacks", fakevllm.Options{}, func(_ *testing.T, _ *http.Client, p *fakevllm.Server) string {
			return strings.Replace(consuming(p, "x"), p.EngineID(), "another-engine", 1)
		}, "remote engine_id another-engine not found"},
		{"an engine of the life before", fakevllm.Options{}, func(t *testing.T, _ *http.Client, p *fakevllm.Server) string {
			kv := consuming(p, "x")
			p.Kill()
			require.NoError(t, p.Restart(t.Context()))
			return kv
		}, "not found from bootstrap server"},
		{"no bootstrap server", fakevllm.Options{}, func(_ *testing.T, _ *http.Client, p *fakevllm.Server) string {
			// Not that of an engine that was killed: another party may be given its port.
			return strings.Replace(consuming(p, "x"), bootstrapURL(p), "http://127.0.0.1:1", 1)
		}, "connection refused"},
		{"a slash too many", fakevllm.Options{}, func(_ *testing.T, _ *http.Client, p *fakevllm.Server) string {
			return strings.Replace(consuming(p, "x"), bootstrapURL(p), bootstrapURL(p)+"/", 1)
		}, "404"},
		{"a prefill that never comes", fakevllm.Options{TransferTimeout: soon}, unused, "timeout waiting for the prefill side"},
		{"a prefill that has no transfer_id", fakevllm.Options{TransferTimeout: soon}, func(t *testing.T, c *http.Client, p *fakevllm.Server) string {
			decode(t, prefillLeg(t, c, p, user, `{"do_remote_decode":true,"do_remote_prefill":false}`))
			n := p.Counters()
			assert.True(t, n.BadParams == 1 && n.TransfersMade == 0, "%+v", n)
			return consuming(p, "x")
		}, "timeout waiting for the prefill side"},
		{"a prefill that ended by a stop token", fakevllm.Options{TransferTimeout: soon}, func(t *testing.T, c *http.Client, p *fakevllm.Server) string {
			first := fakevllm.ExpectedChat([]fakevllm.Message{{Role: "user", Content: "hi"}}, fakevllm.Sampling{MaxTokens: 1}).Tokens[0]
			r := decode(t, post(t, c, p.URL()+"/v1/chat/completions", "R",
				fmt.Sprintf(`{%s,"max_tokens":1,"stop_token_ids":[%d],"kv_transfer_params":%s}`, user, first, producing("x"))))
			assert.Equal(t, "stop", r.Choices[0].FinishReason, "ended by")
			return consuming(p, "x")
		}, "timeout waiting for the prefill side"},
		{"a prefill that was refused", fakevllm.Options{TransferTimeout: soon}, func(t *testing.T, c *http.Client, p *fakevllm.Server) string {
			r := post(t, c, p.URL()+"/v1/chat/completions", "R", `{`+user+`,"max_tokens":0,"kv_transfer_params":`+producing("x")+`}`)
			assert.Equal(t, 400, r.status, r.body)
			return consuming(p, "x")
		}, "timeout waiting for the prefill side"},
		{"blocks that were freed", fakevllm.Options{TransferTimeout: soon}, func(t *testing.T, c *http.Client, p *fakevllm.Server) string {
			decode(t, prefillLeg(t, c, p, user, producing("x")))
			eventually(t, func() error { return want("expired", p.Counters().TransfersExpired, 1) })
			return consuming(p, "x")
		}, "timeout waiting for the prefill side"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, stream := range []string{"", `,"stream":true`} {
				p, d := mooncakePair(t, tt.p, fakevllm.Options{})
				c := client(t)
				r := decodeLeg(t, c, d, user, stream, tt.kv(t, c, p))
				n := d.Counters()
				if why := d.Refusals(); len(why) != 1 || !strings.Contains(why[0], tt.reason) || n.TransfersRefused != 1 || n.TransfersLoaded != 0 {
					t.Errorf("refusals %q, not for %q", why, tt.reason)
				}
				switch {
				case stream != "":
					list := events(t, r.body)
					assert.True(t, r.status == 200 && len(list) == 2 && list[1].Error != nil, "%d %s", r.status, r.body)
				case r.status != 500 || n.Failed != 1:
					t.Errorf("%d %s, %+v", r.status, r.body, n)
				}
			}
		})
	}
}

// TestMooncakeWaits: a decode leg waits for what vLLM does not report, until
// its client leaves; that is counted at the engine that was left.
func TestMooncakeWaits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		body func(p *fakevllm.Server) string
		bad  int64
		many int64
	}{
		{"no prefill", func(p *fakevllm.Server) string {
			return `{` + user + `,"kv_transfer_params":` + consuming(p, "x") + `}`
		}, 0, 0},
		{"no transfer_id", func(p *fakevllm.Server) string {
			return `{` + user + `,"kv_transfer_params":` + strings.Replace(consuming(p, "x"), "transfer_id", "transferred", 1) + `}`
		}, 1, 0},
		{"no remote_engine_id", func(p *fakevllm.Server) string {
			return `{` + user + `,"kv_transfer_params":` + strings.Replace(consuming(p, "x"), "remote_engine_id", "engine_id", 1) + `}`
		}, 1, 0},
		{"no remote_bootstrap_addr", func(p *fakevllm.Server) string {
			return `{` + user + `,"kv_transfer_params":` + strings.Replace(consuming(p, "x"), "remote_bootstrap_addr", "addr", 1) + `}`
		}, 1, 0},
		{"two answers", func(p *fakevllm.Server) string {
			return `{` + user + `,"n":2,"kv_transfer_params":` + consuming(p, "x") + `}`
		}, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, d := mooncakePair(t, fakevllm.Options{}, fakevllm.Options{})
			r := dialRaw(t, d)
			r.send(t, "/v1/chat/completions", "left", tt.body(p))
			eventually(t, func() error { return want("waiting for KV", d.Counters().WaitingForKV, 1) })
			_ = r.conn.Close()
			eventually(t, func() error { return want("aborted", d.Counters().Aborted, 1) })
			n := d.Counters()
			if n.BadParams != tt.bad || n.ReusedTransfers != tt.many || n.WaitingForKV != 0 || n.LocalPrefills != 0 || n.TransfersLoaded != 0 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// TestMooncakeAbortedPrefill: the decode is not notified, and waits; a second pair
// needs a transfer_id of its own.
func TestMooncakeAbortedPrefill(t *testing.T) {
	t.Parallel()
	p, d := mooncakePair(t, fakevllm.Options{TTFT: time.Hour}, fakevllm.Options{})
	second, first := dialRaw(t, d), dialRaw(t, p)
	second.send(t, "/v1/chat/completions", "D", `{`+user+`,"kv_transfer_params":`+consuming(p, "x")+`}`)
	first.send(t, "/v1/chat/completions", "P", `{`+user+`,"max_tokens":1,"kv_transfer_params":`+producing("x")+`}`)
	// The two legs are on their way at once, and decode's question for the blocks, too.
	eventually(t, func() error {
		return errors.Join(want("running", p.Counters().Running, 1), want("pulls", p.Counters().Pulls, 1), want("waiting for KV", d.Counters().WaitingForKV, 1))
	})
	_ = first.conn.Close()
	eventually(t, func() error { return want("aborted", p.Counters().Aborted, 1) })
	n := d.Counters()
	assert.True(t, n.WaitingForKV == 1 && n.TransfersRefused == 0, "%+v", n)
	_ = second.conn.Close()
	eventually(t, func() error { return want("aborted", d.Counters().Aborted, 1) })
	assert.True(t, p.Aborted()[0] == "chatcmpl-P" && d.Aborted()[0] == "chatcmpl-D", "%q, %q", p.Aborted(), d.Aborted())
	again := dialRaw(t, p)
	again.send(t, "/v1/chat/completions", "P", `{`+user+`,"max_tokens":1,"kv_transfer_params":`+producing("x")+`}`)
	eventually(t, func() error { return want("reused", p.Counters().ReusedTransfers, 1) })
}

// TestMooncakeAbortedDecode: what a decode has asked for comes all the same, so
// that nothing stays pinned at the prefill.
func TestMooncakeAbortedDecode(t *testing.T) {
	t.Parallel()
	p, d := mooncakePair(t, fakevllm.Options{}, fakevllm.Options{})
	c := client(t)
	r := dialRaw(t, d)
	r.send(t, "/v1/chat/completions", "left", `{`+user+`,"kv_transfer_params":`+consuming(p, "x")+`}`)
	eventually(t, func() error { return want("queries", p.Counters().BootstrapQueries, 1) })
	_ = r.conn.Close()
	eventually(t, func() error { return want("aborted", d.Counters().Aborted, 1) })
	decode(t, prefillLeg(t, c, p, user, producing("x")))
	eventually(t, func() error { return want("pinned", p.Counters().TransfersWaiting, 0) })
	n := p.Counters()
	assert.True(t, n.TransfersMade == 1 && n.TransfersExpired == 0, "%+v", n)
	n = d.Counters()
	assert.True(t, n.TransfersLoaded == 0 && n.TransfersRefused == 0, "%+v", n)
	// A second decode with the id waits for what the first one has got.
	late := dialRaw(t, d)
	late.send(t, "/v1/chat/completions", "late", `{`+user+`,"kv_transfer_params":`+consuming(p, "x")+`}`)
	eventually(t, func() error { return want("reused", p.Counters().ReusedTransfers, 1) })
	eventually(t, func() error { return want("waiting for KV", d.Counters().WaitingForKV, 1) })
}

// TestMooncakeDeadPrefill: a decode that knows the engine waits for it in vain.
func TestMooncakeDeadPrefill(t *testing.T) {
	t.Parallel()
	p, d := mooncakePair(t, fakevllm.Options{}, fakevllm.Options{})
	c := client(t)
	decode(t, prefillLeg(t, c, p, user, producing("x")))
	decode(t, decodeLeg(t, c, d, user, "", consuming(p, "x")))
	kv := consuming(p, "y")
	p.Kill()
	r := dialRaw(t, d)
	r.send(t, "/v1/chat/completions", "left", `{`+user+`,"kv_transfer_params":`+kv+`}`)
	eventually(t, func() error { return want("waiting for KV", d.Counters().WaitingForKV, 1) })
	_ = r.conn.Close()
	eventually(t, func() error { return want("aborted", d.Counters().Aborted, 1) })
	n := d.Counters()
	assert.EqualValues(t, 0, n.TransfersRefused, "%+v", n)
}

// TestMooncakeForeignBlocks: blocks of another prompt are no error, and the text
// is wrong.
func TestMooncakeForeignBlocks(t *testing.T) {
	t.Parallel()
	p, d := mooncakePair(t, fakevllm.Options{}, fakevllm.Options{})
	c := client(t)
	for i, stream := range []string{"", `,"stream":true`} {
		id := strconv.Itoa(i)
		decode(t, prefillLeg(t, c, p, `"messages":[{"role":"user","content":"ho"}]`, producing(id)))
		r := decodeLeg(t, c, d, user, stream, consuming(p, id))
		got := content(t, r)
		assert.True(t, r.status == 200 && got != expectedHi(), "%d, got %q", r.status, got)
	}
	n := d.Counters()
	assert.True(t, n.WrongKV == 2 && n.TransfersLoaded == 2, "%+v", n)
}

// TestMooncakeLocalPrefill: without a transfer, or where the cache is not read,
// decode computes the prompt, and frees what prefill holds for it.
func TestMooncakeLocalPrefill(t *testing.T) {
	t.Parallel()
	p, d := mooncakePair(t, fakevllm.Options{}, fakevllm.Options{})
	c := client(t)
	for i, body := range []string{
		`{` + user + `,"max_tokens":9}`,
		`{` + user + `,"max_tokens":9,"kv_transfer_params":{}}`,
		`{` + user + `,"max_tokens":9,"kv_transfer_params":{"do_remote_prefill":false,"do_remote_decode":false}}`,
	} {
		if got := content(t, post(t, c, d.URL()+"/v1/chat/completions", "R", body)); got != expectedHi() || d.Counters().LocalPrefills != int64(i+1) {
			t.Errorf("%s: %q, %+v", body, got, d.Counters())
		}
	}
	decode(t, prefillLeg(t, c, p, user, producing("x")))
	decode(t, decodeLeg(t, c, d, user, `,"prompt_logprobs":1`, consuming(p, "x")))
	eventually(t, func() error { return want("pinned", p.Counters().TransfersWaiting, 0) })
	n := d.Counters()
	assert.True(t, n.LocalPrefills == 4 && n.TransfersLoaded == 0 && n.Crashes == 0, "%+v", n)
}

// TestMooncakeBothAtDecode: where both are asked for, the load counts.
func TestMooncakeBothAtDecode(t *testing.T) {
	t.Parallel()
	p, d := mooncakePair(t, fakevllm.Options{}, fakevllm.Options{})
	c := client(t)
	decode(t, prefillLeg(t, c, p, user, producing("x")))
	kv := strings.Replace(consuming(p, "x"), `"do_remote_decode":false`, `"do_remote_decode":true`, 1)
	got := content(t, decodeLeg(t, c, d, user, "", kv))
	assert.True(t, got == expectedHi() && d.Counters().TransfersLoaded == 1, "%q, %+v", got, d.Counters())
}

// TestMooncakeStreamedPrefill: vLLM hands over however the prefill is answered.
func TestMooncakeStreamedPrefill(t *testing.T) {
	t.Parallel()
	p, d := mooncakePair(t, fakevllm.Options{}, fakevllm.Options{})
	c := client(t)
	post(t, c, p.URL()+"/v1/chat/completions", "R", `{`+user+`,"max_tokens":1,"ignore_eos":true,"stream":true,"kv_transfer_params":`+producing("x")+`}`)
	got := content(t, decodeLeg(t, c, d, user, "", consuming(p, "x")))
	assert.True(t, got == expectedHi() && d.Counters().TransfersLoaded == 1, "%q, %+v", got, d.Counters())
}

// TestMooncakeStrict: what a proxy must say to a prefill, and which ranks there are.
func TestMooncakeStrict(t *testing.T) {
	t.Parallel()
	p, d := mooncakePair(t, fakevllm.Options{StrictPrefill: true}, fakevllm.Options{StrictPrefill: true})
	c := client(t)
	post(t, c, p.URL()+"/v1/chat/completions", "R", `{`+user+`,"max_tokens":1,"kv_transfer_params":`+producing("x")+`}`)
	post(t, c, p.URL()+"/v1/chat/completions", "R", `{`+user+`,"max_tokens":1}`)
	got := strings.Join(p.Violations(), "\n")
	if strings.Count(got, "no X-data-parallel-rank") != 2 || strings.Count(got, "has not the prefill form") != 1 {
		t.Errorf("violations %s", got)
	}
	for rank, status := range map[string]int{"0": 200, "1": 400, "-1": 400, "none": 200} {
		r := post(t, c, d.URL()+"/v1/chat/completions", "", `{`+user+`}`, "X-Data-Parallel-Rank", rank)
		assert.Equal(t, status, r.status, "rank %s: %s", rank, r.body)
	}
}
