package forward_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// An answer with log probabilities may have many megabytes. Whatever its size, it reaches the client without
// transfer params, with prefill's cached tokens, and only if it was not aborted.
func TestLargeAnswer_Edited(t *testing.T) {
	t.Parallel()
	r := startTuned(t, fakevllm.NIXL, 1, 2, tuning{engine: func(o *fakevllm.Options) {
		o.Bidirectional, o.MaxModelLen = o.Role == fakevllm.RoleDecode, 1<<16
	}})
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultAbort, At: fakevllm.AfterTokens, Tokens: 1, Times: 1})
	body := `{"model":"m","messages":[{"role":"user","content":"tell me of the sea"}],"max_tokens":20000,"min_tokens":20000,"ignore_eos":true,"logprobs":true,"top_logprobs":5,"return_token_ids":true}`
	a := r.post(chatPath, body)
	require.True(t, a.err == nil && a.status == http.StatusOK && len(a.body) >= 2<<20,
		"status %d, err %v, %d bytes", a.status, a.err, len(a.body))
	var got struct {
		Choices []struct {
			Message      struct{ Content string }
			FinishReason string `json:"finish_reason"`
			TokenIDs     []int  `json:"token_ids"`
		}
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		Transfer json.RawMessage `json:"kv_transfer_params"`
	}
	require.NoError(t, json.Unmarshal(a.body, &got))
	assert.True(t, string(got.Transfer) == "null" && !bytes.Contains(a.body, []byte("remote_host")),
		"the KV transfer reaches the client: %s", got.Transfer)
	assert.Equal(t, 0, got.Usage.Details.Cached, "cached tokens, prefill had none")
	if len(got.Choices) != 1 || got.Choices[0].FinishReason != "length" || len(got.Choices[0].TokenIDs) != 20000 {
		t.Errorf("%d choices of another end", len(got.Choices))
	}
	n := a.header.Get("Content-Length")
	assert.Equal(t, strconv.Itoa(len(a.body)), n, "Content-Length %s of %d", n, len(a.body))
	assert.Equal(t, "decode/aborted", r.rec.retried(), "retried")
	r.checkEngines()
}

// largeAnswer is an answer of a kind with about size bytes in its largest member.
func largeAnswer(kind openai.Kind, size int) string {
	text := strings.Repeat("sea ", size/4)
	switch kind {
	case openai.Responses:
		return `{"object":"response","output":[{"type":"message","content":[{"text":"` + text + `"}]}],"status":"completed",` +
			`"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8},"output_tokens":5},"kv_transfer_params":{"remote_host":"secret"}}`
	case openai.Messages:
		return `{"type":"message","content":[{"type":"text","text":"` + text + `"}],"stop_reason":"end_turn",` +
			`"usage":{"input_tokens":1,"output_tokens":5,"cache_read_input_tokens":8},"kv_transfer_params":{"remote_host":"secret"}}`
	case openai.Completion, openai.Chat, openai.Generate, openai.Other:
	}
	return `{"kv_transfer_params":{"remote_host":"secret"},"choices":[{"index":0,"text":"` + text + `","finish_reason":"stop","token_ids":[1]}],` +
		`"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}},"ec_transfer_params":{"remote_host":"secret"},"prompt_logprobs":"` + text + `"}`
}

// All APIs, with and without an announced length, in answers below and above 1 MiB. Larger answers were once
// passed on unread.
func TestLargeAnswer_EachAPI(t *testing.T) {
	t.Parallel()
	for _, kind := range openai.Generating() {
		for _, size := range []int{100, 1<<19 - 500, 1 << 20} {
			for _, announced := range []bool{true, false} {
				t.Run(fmt.Sprint(kind.Path(), size, announced), func(t *testing.T) {
					t.Parallel()
					answer := largeAnswer(kind, size)
					prefill := `{"usage":{"prompt_tokens_details":{"cached_tokens":3},"input_tokens_details":{"cached_tokens":3},"cache_read_input_tokens":3,"input_tokens":6}}`
					s := &scriptedClient{
						prefill: []byte(prefill), header: http.Header{"Content-Type": {"application/json"}}, answer: []byte(answer), length: -1, end: io.EOF,
					}
					if announced {
						s.length = int64(len(answer))
					}
					got := relayOnce(t, s, kind.Path())
					if got.status != http.StatusOK || got.broken || !json.Valid(got.body) || got.length != strconv.Itoa(len(got.body)) {
						t.Fatalf("status %d, broken %v, length %s of %d", got.status, got.broken, got.length, len(got.body))
					}
					assert.False(t, bytes.Contains(got.body, []byte("secret")), "the KV transfer reaches the client")
					if bytes.Contains(got.body, []byte(`tokens":8`)) || kind != openai.Generate && !bytes.Contains(got.body, []byte(`tokens":3`)) {
						t.Error("the cached tokens are not prefill's")
					}
				})
			}
		}
	}
}

// An answer that does not fit into the memory for bodies is an error that is not retried, since no instance
// would avoid it. No answer is passed on unread.
func TestLargeAnswer_NoMemory(t *testing.T) {
	t.Parallel()
	r := startTuned(t, fakevllm.NIXL, 2, 2, tuning{
		engine:  func(o *fakevllm.Options) { o.MaxModelLen = 1 << 16 },
		forward: func(o *forward.Options) { o.MaxBodies = 2 << 20 },
	})
	body := `{"model":"m","messages":[{"role":"user","content":"tell me of the sea"}],"max_tokens":20000,"min_tokens":20000,"ignore_eos":true,"logprobs":true,"top_logprobs":5}`
	a := r.post(chatPath, body)
	r.checkRefused(scenario{chatPath, false}, a, http.StatusBadGateway, "--max-bodies-memory")
	if e := r.entry(); e.Failure != leg.TooLarge || e.Failed != 1 || r.rec.retried() != "" {
		t.Errorf("retried %q, entry %+v", r.rec.retried(), e)
	}
	if held, _, refused := r.handler.BodyMemory(); held != 0 || refused != 1 {
		t.Errorf("%d bytes held, %d refused", held, refused)
	}
	r.checkServed(scenario{chatPath, false})
	r.checkEngines()
}

// An answer of unknown length whose buffers exceed the memory for bodies, while no other body holds any, is
// too large: the error does not suggest a retry.
func TestLargeAnswer_NoMemoryForUnknownLength(t *testing.T) {
	t.Parallel()
	const limit = 4 << 20
	for _, n := range []int{5 << 20, 9 << 20, 20 << 20} {
		up := &unannounced{canned: canned{prefill: []byte(plainAnswer)}, bodies: []func() io.Reader{func() io.Reader { return bytes.NewReader(make([]byte, n)) }}}
		w := httptest.NewRecorder()
		askWhole(t, handlerOf(t, up, func(o *forward.Options) { o.MaxBodies = limit }), w)
		if body := w.Body.String(); w.Code != http.StatusBadGateway || !strings.Contains(body, "--max-bodies-memory") || strings.Contains(body, "try again") {
			t.Errorf("%d bytes: %d %s", n, w.Code, body)
		}
	}
}

// preamble returns n events of about size bytes without content.
func preamble(n, size int) string {
	one := `data: {"choices":[{"delta":{"role":"assistant","content":""}}],"x":"` + strings.Repeat("p", size) + "\"}\n\n"
	return strings.Repeat(one, n)
}

// The bound is for one event, not for all events before the first content.
func TestPreamble_Beyond8MiB(t *testing.T) {
	t.Parallel()
	const end = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	for _, n := range []int{3, 9, 20} {
		answer := preamble(n, 1<<20) + end
		got := relayOnce(t, &scriptedClient{
			prefill: []byte(`{"choices":[]}`), header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}},
			answer: []byte(answer), cuts: []byte{255}, length: -1, end: io.EOF, large: true,
		}, chatPath)
		assert.True(t, got.status == http.StatusOK && !got.broken && string(got.body) == answer,
			"%d MiB: status %d, broken %v, %d bytes of %d", n, got.status, got.broken, len(got.body), len(answer))
	}
}

// A failure that would recur on every instance is not retried on another one.
func TestTooLarge_NotRetried(t *testing.T) {
	t.Parallel()
	event := "data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("a", 9<<20) + "\"}}]}\n\n"
	for name, engine := range map[string]http.HandlerFunc{
		"event": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, event)
		},
		"head": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("h", 100<<10))
		},
	} {
		for _, kind := range []string{upstream.KindOwn, upstream.KindStd} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				up := upstream.New(kind, upstream.Options{ConnectTimeout: waitLimit})
				t.Cleanup(up.Close)
				var asked atomic.Int64
				r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) { o.Upstream = up })
				r.withEngine(handlerEngine(t, instance.Decode, func(w http.ResponseWriter, r *http.Request) {
					asked.Add(1)
					engine(w, r)
				}), false)
				a := r.post(chatPath, chatBody(true, ""))
				e := r.entry()
				if a.status != http.StatusBadGateway || e.Failure != leg.TooLarge || e.Failed != 1 || asked.Load() != 1 || r.rec.retried() != "" {
					t.Errorf("%d legs, retried %q, status %d %s, entry %+v", asked.Load(), r.rec.retried(), a.status, a.body, e)
				}
			})
		}
	}
}

// After the commit an event that is too large breaks the answer off. The client gets the reason and
// no address of the fleet.
func TestTooLarge_AfterCommit(t *testing.T) {
	t.Parallel()
	const token = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
	got := relayOnce(t, &scriptedClient{
		prefill: []byte(`{"choices":[]}`), header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}},
		answer: []byte(token + preamble(1, 9<<20)), cuts: []byte{255}, length: -1, end: io.EOF, large: true,
	}, chatPath)
	if !got.broken || !strings.HasPrefix(string(got.body), token+"data: {\"error\":") || !bytes.Contains(got.body, []byte("more at once than this proxy holds")) || bytes.Contains(got.body, []byte("10.0.0.")) {
		t.Errorf("broken %v: %.500s", got.broken, got.body)
	}
}

// A prefill whose answer is too large is not tried again. The request becomes decode-only.
func TestTooLarge_Prefill(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 2, 1, nil)
	var asked atomic.Int64
	odd := handlerEngine(t, instance.Prefill, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"x":"`+strings.Repeat("x", 17<<20)+`"}`)
	})
	odd.Record.Connector = string(fakevllm.NIXL)
	r.withEngine(odd, false)
	r.checkServed(scenario{chatPath, true})
	if e := r.entry(); e.DecodeOnly != "prefill_failed" || e.Failed != 1 || asked.Load() != 1 {
		t.Errorf("%d legs, entry %+v", asked.Load(), e)
	}
}
