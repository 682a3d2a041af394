package forward_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// scriptedClient is an upstream client whose engines send scripted bytes, in
// reads of any size.
type scriptedClient struct {
	prefill []byte
	header  http.Header
	answer  []byte
	length  int64
	cuts    []byte
	end     error // the error after the answer; io.EOF for a clean end
	joined  bool  // the end comes together with the last bytes
	large   bool  // the cuts are in units of 4 KiB
}

func (s *scriptedClient) Do(_ context.Context, r *upstream.Request) (*upstream.Response, error) {
	if r.Instance.Role == instance.Prefill {
		return &upstream.Response{
			Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
			Length: int64(len(s.prefill)), Body: io.NopCloser(bytes.NewReader(s.prefill)),
		}, nil
	}
	return &upstream.Response{Status: http.StatusOK, Header: s.header, Length: s.length, Body: &scriptedBody{scriptedClient: s, rest: s.answer}}, nil
}

func (*scriptedClient) Forget(string) {}
func (*scriptedClient) Close()        {}

type scriptedBody struct {
	*scriptedClient

	rest []byte
	turn int
}

func (b *scriptedBody) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, b.end
	}
	n := len(b.rest)
	if len(b.cuts) > 0 {
		cut := int(b.cuts[b.turn%len(b.cuts)]) + 1
		if b.large {
			cut <<= 12
		}
		n = min(n, cut)
		b.turn++
	}
	n = copy(p, b.rest[:n])
	b.rest = b.rest[n:]
	if b.joined && len(b.rest) == 0 {
		return n, b.end
	}
	return n, nil
}

func (*scriptedBody) Close() error { return nil }

// ReleasesBody implements upstream.Client.
func (*scriptedClient) ReleasesBody(*upstream.Request) bool { return true }

// healthy is the health and the recorder of a fleet without failures.
type healthy struct{ noRecorder }

func (healthy) Troubled() []instance.Key                        { return nil }
func (healthy) Available(instance.Key) bool                     { return true }
func (healthy) Unreachable(instance.Key) bool                   { return false }
func (healthy) SilentFor(instance.Key) time.Duration            { return 0 }
func (healthy) Share(instance.Key) float64                      { return 1 }
func (healthy) Eject(*instance.Instance, string)                {}
func (healthy) Strike(*instance.Instance, string, string, bool) {}
func (healthy) Success(*instance.Instance, string)              {}
func (healthy) Failing(instance.Key, string) bool               { return false }

// clientView is an answer as a client received it.
type clientView struct {
	status int
	length string // Content-Length
	body   []byte
	broken bool // the connection was broken, not ended
}

// relayOnce sends one request through the handler.
func relayOnce(t *testing.T, s *scriptedClient, path string) clientView {
	t.Helper()
	return relayKeptAlive(t, s, path, 0)
}

// relayKeptAlive is relayOnce with an interval of keep-alives.
func relayKeptAlive(t *testing.T, s *scriptedClient, path string, interval time.Duration) (got clientView) {
	t.Helper()
	body := `{"model":"m","prompt":"x","stream":true}`
	switch openai.KindOf(path) {
	case openai.Responses:
		body = `{"model":"m","input":"x","stream":true}`
	case openai.Messages:
		body = `{"model":"m","messages":[],"max_tokens":9,"stream":true}`
	case openai.Generate:
		body = `{"model":"m","token_ids":[1],"sampling_params":{},"stream":true}`
	case openai.Chat:
		body = chatBody(true, "")
	case openai.Completion, openai.Other:
	}
	return relayBody(t, s, path, body, interval, 0)
}

// relayBody sends a request whose stream may be continued this number of times.
func relayBody(t *testing.T, s upstream.Client, path, body string, interval time.Duration, moves int) (got clientView) {
	t.Helper()
	var fleet members
	fleet.set(instanceAt(instance.Prefill, "10.0.0.1:1", "plain"), instanceAt(instance.Decode, "10.0.0.2:1", "plain"))
	if moves > 0 {
		fleet.set(instanceAt(instance.Prefill, "10.0.0.1:1", "plain"), instanceAt(instance.Decode, "10.0.0.2:1", "plain"), instanceAt(instance.Decode, "10.0.0.3:1", "plain"))
	}
	picker := sched.New(sched.Options{
		Source: &fleet, Health: healthy{}, PairKey: pairKey,
	})
	h, err := forward.New(forward.Options{
		Config:   flow.Config{Picker: picker, Health: healthy{}, Log: quiet(), MaxAttempts: 1 + moves, ContinueStreams: moves},
		Settings: leg.Settings{Upstream: s}, Recorder: healthy{}, KeepAlive: interval,
	})
	require.NoError(t, err)
	serve := h.Passthrough(path, "")
	kind := openai.KindOf(path)
	if kind != openai.Other {
		serve = h.Completion(kind)
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	defer func() {
		switch p := recover(); p {
		case nil, http.ErrAbortHandler:
			got = clientView{w.Code, w.Header().Get("Content-Length"), w.Body.Bytes(), p != nil}
		default:
			panic(p)
		}
		picker.Loads.Each(func(k instance.Key, n int64) {
			assert.EqualValues(t, 0, n, "%s: in flight behind the end", k)
		})
	}()
	serve(relay.Std(w), req)
	return got
}

var edge = regexp.MustCompile(`\n\r?\n`)

// rawEvents splits a stream into its events; rest is the incomplete event at its end.
func rawEvents(stream []byte) (events [][]byte, rest []byte) {
	for {
		at := edge.FindIndex(stream)
		if at == nil {
			return events, stream
		}
		events, stream = append(events, stream[:at[1]]), stream[at[1]:]
	}
}

// texts returns the events of a stream that are not empty.
func texts(stream []byte) (out []string) {
	events, _ := rawEvents(stream)
	for _, e := range events {
		if s := strings.Trim(string(e), "\r\n"); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// withoutKeepAlives returns a stream without comments, and without the pings of /v1/messages.
func withoutKeepAlives(kind openai.Kind, stream []byte) []byte {
	events, rest := rawEvents(stream)
	var out []byte
	for _, e := range events {
		if !sse.KeepsAlive(kind, e) {
			out = append(out, e...)
		}
	}
	return append(out, rest...)
}

// textsOf does the same for events that texts returned.
func textsOf(kind openai.Kind, texts []string) (out []string) {
	for _, e := range texts {
		if !sse.KeepsAlive(kind, []byte(e+"\n\n")) {
			out = append(out, e)
		}
	}
	return out
}

// wantStream returns the events that a client must get: none before the first event with content, then only
// whole events. The end is clean only after the closing event, or after any event if the API has no closing
// event.
func wantStream(s *scriptedClient, kind openai.Kind, cached string) (out []string, committed, broken bool) {
	events, rest := rawEvents(s.answer)
	done, finished := false, false
	for _, e := range events {
		if !committed {
			class, _ := sse.Classify(kind, e)
			if class == sse.EventError {
				return nil, false, false
			}
			if aborted := class == sse.EventDone && kind != openai.Other || class == sse.EventContent && sse.Aborted(kind, e); aborted {
				return nil, false, false
			}
			committed = class != sse.EventPreamble
		}
		sign := sse.SignOf(kind, e)
		if finished = finished || sse.Finished(e); kind == openai.Generate && sign == sse.SignEnd && !finished && !done {
			sign = sse.SignAborted
		}
		if committed && sign == sse.SignAborted {
			return out, true, true
		}
		text := e
		if cached != "" && response.HasCachedTokens(openai.Chat, e) {
			text = response.SetCachedTokens(openai.Chat, e, response.Cached{Tokens: cached})
		}
		if trimmed := strings.Trim(string(text), "\r\n"); trimmed != "" {
			out = append(out, trimmed)
		}
		switch {
		case !committed || sign == sse.SignNone:
		case sign == sse.SignError:
			return out, true, true
		default:
			done = true
		}
	}
	clean := done || kind == openai.Other && errors.Is(s.end, io.EOF) && len(bytes.Trim(rest, "\r\n")) == 0
	return out, committed, committed && !clean
}

// FuzzRelay has an engine answer with any bytes, in any reads, with any end. The client's answer depends only
// on the bytes, contains only whole events, and never looks complete when it is not.
func FuzzRelay(f *testing.F) {
	const (
		role  = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
		token = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n"
		usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":9}}}\n\n"
		fault = "data: {\"error\":{\"message\":\"m\",\"code\":500}}\n\n"
		done  = "data: [DONE]\n\n"
	)
	for i, s := range []string{
		role + token + token + usage + done, token + fault, role + fault, fault, token, token + done + "\n" + token, "", "\n\n\n" + role + "\n" + token,
		": ping\r\n\r\ndata: {\"choices\":[{\"text\":\"a\"}]}\r\n\r\ndata: [DONE]\r\n\r\n", token + usage + fault, token[:len(token)-1], token + done + fault,
		strings.Repeat(token, 100) + done, "data: " + strings.Repeat("y", 3000) + "\n\n" + done,
		token + "data: " + strings.Repeat("z", 40000) + "\n\n" + done, // larger than the pooled buffers
	} {
		for how := range byte(12) {
			f.Add([]byte(s), []byte{byte(i), 200, byte(3 * i)}, how, i%2 == 0)
		}
		f.Add([]byte(s), []byte{byte(len(token)) - 1, 0}, byte(0), i%2 != 0)
		f.Add([]byte(s+"\n"), []byte{byte(len(token)) - 1, 0}, byte(1), false)
	}
	named := func(names ...string) string {
		var b strings.Builder
		for _, n := range names {
			b.WriteString("event: " + n + "\ndata: {\"type\":\"" + n + "\"}\n\n")
		}
		return b.String()
	}
	for i, s := range []string{
		named("response.created", "response.in_progress", "response.output_text.delta", "response.completed"),
		named("response.created", "response.failed"), named("response.created", "response.output_text.delta", "response.failed"),
		named("response.created", "error"), named("response.created", "response.output_text.delta", "error"), named("response.created"),
		named("message_start", "ping", "content_block_start", "content_block_delta", "message_delta", "message_stop"),
		named("message_start", "error"), named("message_start", "content_block_delta", "error"), named("message_start", "content_block_start"),
		named("message_start", "content_block_delta"), named("message_start", "message_stop", "message_stop"),
	} {
		for how := byte(16); how < 28; how++ {
			f.Add([]byte(s), []byte{byte(i), 60, byte(3 * i)}, how, false)
		}
	}
	const (
		unfinished = "data: {\"choices\":[{\"index\":0,\"finish_reason\":null,\"token_ids\":[1]}]}\n\n"
		aborted    = "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"abort\",\"token_ids\":[]}]}\n\n"
		finished   = "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",\"token_ids\":[1]}]}\n\n"
		noReason   = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":null}}\n\n"
		cancelled  = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"cancelled\"}}\n\n"
	)
	for i, s := range []string{
		unfinished + done, unfinished + finished + done, unfinished + aborted + done, aborted + done, done, role + done, ": c\n\n" + unfinished + ": c\n\n" + finished + done,
		named("message_start", "ping", "content_block_delta", "ping") + noReason + named("message_stop"), named("message_start") + noReason + named("message_stop"),
		named("response.created", "response.output_text.delta") + cancelled, named("response.created") + cancelled, ": c\n\n" + fault,
	} {
		for _, how := range []byte{0, 1, 2, 8, 16, 17, 32, 34} {
			f.Add([]byte(s), []byte{byte(3 * i), 200}, how, i%2 == 0)
		}
	}
	paths := []string{openai.Completion.Path(), "/v1/embeddings", openai.Responses.Path(), openai.Messages.Path(), openai.Generate.Path(), "/v1/rerank"}
	f.Fuzz(func(t *testing.T, answer, cuts []byte, how byte, counted bool) {
		path := paths[int(how&1|how>>3&6)%len(paths)]
		kind := openai.KindOf(path)
		s := &scriptedClient{
			prefill: []byte(`{"choices":[]}`), header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}},
			answer: answer, length: -1, end: io.EOF, joined: how&2 != 0,
		}
		cached := ""
		if counted && kind == openai.Completion {
			s.prefill, cached = []byte(`{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}`), "3"
		}
		if how%12 >= 8 {
			s.end, s.joined = &upstream.Error{Stage: upstream.StageBody, Err: io.ErrUnexpectedEOF, MaybeTaken: true}, false
		}
		want, committed, broken := wantStream(s, kind, cached)
		for i, interval := range []time.Duration{0, 0, time.Nanosecond} {
			if s.cuts = cuts; i == 0 {
				s.cuts = nil
			}
			got := relayKeptAlive(t, s, path, interval)
			want := want
			if interval > 0 {
				got.body, want = withoutKeepAlives(kind, got.body), textsOf(kind, want)
			}
			if interval > 0 && !committed && got.status == http.StatusOK {
				// The header had been sent before the failure.
				if have := texts(got.body); !got.broken || len(have) != 1 || !json.Valid(sse.EventData([]byte(have[0]))) || sse.SignOf(kind, []byte(have[0]+"\n\n")) != sse.SignError {
					t.Fatalf("%q in reads of %v: broken %v, %q; nothing was committed", answer, s.cuts, got.broken, got.body)
				}
				continue
			}
			if !committed {
				require.True(t, got.status >= 400 && !got.broken && json.Valid(got.body),
					"%q in reads of %v: %d %q, broken %v; nothing was committed", answer, s.cuts, got.status, got.body, got.broken)
				continue
			}
			have := texts(got.body)
			if broken && len(have) == len(want)+1 {
				data := sse.EventData([]byte(have[len(have)-1]))
				if !json.Valid(data) || !bytes.Contains(data, []byte("lost in the middle")) {
					t.Fatalf("%q in reads of %v ends with %q", answer, s.cuts, have[len(have)-1])
				}
				have = have[:len(have)-1]
			} else if broken && (len(want) == 0 || sse.SignOf(kind, []byte(want[len(want)-1])) != sse.SignError) {
				t.Fatalf("%q in reads of %v is broken without an error event: %q", answer, s.cuts, got.body)
			}
			if got.status != http.StatusOK || got.broken != broken || !slices.Equal(have, want) {
				t.Fatalf("%q in reads of %v: %d, broken %v\n%q\nwant broken %v\n%q", answer, s.cuts, got.status, got.broken, have, broken, want)
			}
			if _, rest := rawEvents(got.body); len(bytes.Trim(rest, "\r\n")) > 0 {
				t.Fatalf("%q in reads of %v: half an event goes out: %q", answer, s.cuts, rest)
			}
		}
	})
}

// FuzzWhole does the same with answers that are not streamed.
func FuzzWhole(f *testing.F) {
	for _, s := range []string{`{"choices":[{"text":"x"}],"usage":{"prompt_tokens_details":{"cached_tokens":9}}}`, "", "{}", "\x00not JSON\n\n"} {
		for how := range byte(8) {
			f.Add([]byte(s), []byte{2, 90}, how, int8(0), how%2 == 0)
		}
		f.Add([]byte(s), []byte{1}, byte(1), int8(3), true)
		f.Add([]byte(s), []byte{1}, byte(1), int8(-1), true)
	}
	for _, s := range []string{
		`{"kv_transfer_params":{"a":1},"choices":[{"text":"x","finish_reason":"stop"}],"usage":{"prompt_tokens_details":{"cached_tokens":9}}}`,
		`{"choices":[{"text":"x","finish_reason":"abort"}]}`, `{"choices":[{"text":"x"}],"choices":[{"finish_reason":"abort"}],"ec_transfer_params":[1]}`, `{"large":1,"large":2}`,
	} {
		for _, how := range []byte{0, 8, 10, 12} {
			f.Add([]byte(s), []byte{200, 3}, how, int8(0), true)
		}
	}
	large := `{"large":"` + strings.Repeat("l", 1<<20+1<<18) + `",`
	f.Fuzz(func(t *testing.T, answer, cuts []byte, how byte, off int8, counted bool) {
		enlarged := how&8 != 0 && len(answer) > 1 && answer[0] == '{' && answer[1] == '"'
		if enlarged {
			answer = append([]byte(large), answer[1:]...)
		}
		s := &scriptedClient{
			large:   enlarged,
			prefill: []byte(`{"choices":[]}`), header: http.Header{"Content-Type": {"application/json"}},
			answer: answer, length: -1, end: io.EOF, joined: how&1 != 0,
		}
		if how&2 != 0 {
			s.length = int64(len(answer)) + max(int64(off), 0) // the upstream client cuts off longer bodies
			s.header.Set("Content-Length", strconv.FormatInt(s.length, 10))
		}
		if how&4 != 0 {
			s.end, s.joined = &upstream.Error{Stage: upstream.StageBody, Err: io.ErrUnexpectedEOF, MaybeTaken: true}, false
		}
		want := answer
		if counted {
			s.prefill = []byte(`{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}`)
			want = response.SetCachedTokens(openai.Chat, answer, response.Cached{Tokens: "3"})
		}
		if response.MayHaveTransferParams(want) {
			want = response.HideTransferParams(openai.Completion, want)
		}
		lost := len(answer) == 0 || s.length > int64(len(answer)) || s.length < 0 && !errors.Is(s.end, io.EOF) || sse.Aborted(openai.Completion, answer)
		for _, s.cuts = range [][]byte{nil, cuts} {
			if enlarged && len(s.cuts) > 0 && slices.Min(s.cuts) < 2 {
				continue // it would take long
			}
			got := relayOnce(t, s, openai.Completion.Path())
			switch {
			case got.broken:
				t.Fatalf("%q in reads of %v is broken; nothing was committed", answer, s.cuts)
			case lost && (got.status < 500 || !json.Valid(got.body)):
				t.Fatalf("%.500q in reads of %v was lost: %d %.500q", answer, s.cuts, got.status, got.body)
			case !lost && (got.status != http.StatusOK || !bytes.Equal(got.body, want) || got.length != strconv.Itoa(len(want))):
				t.Fatalf("%.500q in reads of %v: %d, length %s, %.500q", answer, s.cuts, got.status, got.length, got.body)
			}
		}
	})
}
