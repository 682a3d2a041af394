package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/response"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
)

var requestSeeds = []string{
	`{}`, `{"max_tokens":5}`, `{"kv_transfer_params":{"a":[1,2]},"max_tokens":1e3,"stream":true}`,
	`{"bootstrap_host":1,"a":2,"disagg_spec":3}`, `{"bootstrap_x":1,"priority":-7,"ec_transfer_params":{},"priority":2}`, `{"sampling_params":{"extra_args":{"kv_transfer_params":1}}}`,
	` {"a":"\u0000\ud800","max_tok\u0065ns":"7","max_tokens":8} `, `{"vllm_xargs":{},"vllm_xargs":{"disagg_spec":0,"x":0}}`, `{"messages":[],"extra_args":{"ec_transfer_params":1,"priority":3}}`,
	`{"stop":["a"],"stop":null,"n":2,"prompt":[[1],[2]]}`, `[1]`, `{"a":"\"}`,
	`{"a":[1,-0.5e+3,"\n",true,null,{}]}`, `{"a":[1,2 ,3,]}`, `{"a":[1,,2]}`, `{"a":[12, ]}`, `{"a":[01]}`, `{"a":1}x`,
	`{"model":"m","messages":[{"role":"user","content":"x"}],"max_completion_tokens":9,"min_tokens":2,"stop_token_ids":[3],"tool_choice":"required"}`,
	`{"model":"m","prompt":"x","stream":true,"stream_options":{"include_usage":true},"ignore_eos":null,"n":"1","best_of":2.0,"echo":"no"}`,
	`{"prompt":["a","b"],"use_beam_search":1,"prompt_logprobs":0}`, "{\"a\":\"\xff\"}", `{"vllm_xargs":[{"disagg_spec":1}],"extra_args":{"bootstrap_room":1 , "y":2}}`,
	`{"model":"m","messages":[],"temperature":0.5,"top_p":1,"seed":7,"user":"u","logit_bias":{},"tools":[],"stream":true,"stop":"x","metadata":{"a":1},` +
		`"disagg_spec":{},"response_format":null,"bootstrap_room":1,"logprobs":false,"stream_options":{"include_usage":true},"n":1,"stop_token_ids":[2]}`,
	`{"sampling_params":{"vllm_xargs":{"disagg_spec":0},"bootstrap_port":1},"min_completion_tokens":1,"stream":false}`,
	`{"model":"m","input":[{"role":"user","content":"x"}],"max_output_tokens":9,"store":true,"background":false,"stop":"x","min_tokens":3,"stream":true}`,
	`{"input":"x","background":true,"store":null,"previous_response_id":"resp_1","max_tokens":7}`,
	`{"model":"m","messages":[],"max_tokens":9,"stop_sequences":["x"],"system":"y","stream":true,"tool_choice":{"type":"any"},"min_tokens":4}`,
	`{"model":"m","token_ids":[1,2],"sampling_params":{"max_tokens":9,"stop":"x","n":1},"stream":true,"max_tokens":3,"stream_options":{}}`,
	`{"stop":1,"sampling_params":{"min_tokens":2},"token_ids":[1],"sampling_params":{ "extra_args":{"kv_transfer_params":{}},"priority":1,"stop":[],"ignore_eos":false},"priority":2}`,
	`{"token_ids":[1],"sampling_params":{}}`, `{"token_ids":[1],"sampling_params":{"kv_transfer_params":{},"stop_token_ids":[2]},"sampling_params":null}`,
}

// refusedForALimit reports whether err is one of the refusals that a valid object can get, for limits that
// the standard library does not have.
func refusedForALimit(err error) bool {
	for _, words := range []string{"more than 512", "more than 4096", "more than 64"} {
		if strings.Contains(err.Error(), words) {
			return true
		}
	}
	return false
}

// FuzzParse compares the reading of a request with the standard library's: whether it is JSON, which value
// counts, and its content.
func FuzzParse(f *testing.F) {
	for _, s := range requestSeeds {
		for kind := range openai.Generating() {
			f.Add([]byte(s), byte(kind))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, which byte) {
		kinds := openai.Generating()
		kind := kinds[int(which)%len(kinds)]
		members, object := rawMembers(body)
		object = object && utf8.Valid(body)
		_, err := request.ParseOther(body)
		require.False(t, err == nil && !object, "accepted %q", body)
		require.False(t, err != nil && object && !refusedForALimit(err), "refused %q: %v", body, err)
		r, err := request.Parse(kind, body)
		if err != nil {
			var e *openai.Error
			require.True(t, errors.As(err, &e) && e.Status == 400 && e.Message != "" && json.Valid(e.JSON()),
				"%q is refused with %#v", body, err)
			return
		}
		require.True(t, object, "accepted %q", string(body))
		var model string
		if raw := lastOf(members, "model"); raw != nil {
			require.NoError(t, json.Unmarshal(raw, &model), "took the model %s", string(raw))
		}
		require.Equal(t, model, r.Model, "%q: model", body)
		if raw := lastOf(members, "stream"); (kindOf(raw) == 't' || kindOf(raw) == 'f' || raw == nil) && r.Stream != (kindOf(raw) == 't') {
			t.Fatalf("%q: stream is %v", body, r.Stream)
		}
		limit := lastOf(members, "max_tokens")
		if kind == openai.Responses {
			limit = lastOf(members, "max_output_tokens")
		}
		if kind == openai.Generate {
			at := lastObject(members, "sampling_params")
			require.GreaterOrEqual(t, at, 0, "%q has no sampling_params", body)
			members, _ = rawMembers(members[at].value)
			limit = lastOf(members, "max_tokens")
		}
		if raw := lastOf(members, "max_completion_tokens"); kind == openai.Chat && raw != nil && kindOf(raw) != 'n' {
			limit = raw
		}
		var n int64
		require.False(t, json.Unmarshal(limit, &n) == nil && r.MaxTokens != n,
			"%q: limit %d, want %d", body, r.MaxTokens, n)
		why := mustNotSplit(members, kind)
		require.False(t, why != "" && r.Bypass == "", "%q goes through prefill and decode in spite of %s", body, why)
	})
}

// mustNotSplit returns the reason why a request must not go through prefill and decode, "" for none (see
// readBypass in package request). It considers only decoded values that need no lax reading.
func mustNotSplit(members []rawMember, kind openai.Kind) string {
	switch kind {
	case openai.Responses:
		if kindOf(lastOf(members, "background")) == 't' {
			return "background"
		}
		var id string
		if json.Unmarshal(lastOf(members, "previous_response_id"), &id) == nil && id != "" {
			return "previous_response_id"
		}
		return ""
	case openai.Messages, openai.Other:
		return ""
	case openai.Generate:
		var n float64
		switch raw := lastOf(members, "prompt_logprobs"); {
		case json.Unmarshal(lastOf(members, "n"), &n) == nil && n > 1:
			return "n"
		case raw != nil && kindOf(raw) != 'n':
			return "prompt_logprobs"
		}
		return ""
	case openai.Completion, openai.Chat:
	}
	for _, name := range []string{"n", "best_of"} {
		var n float64
		if json.Unmarshal(lastOf(members, name), &n) == nil && n > 1 {
			return name
		}
	}
	for _, name := range []string{"use_beam_search", "echo"} {
		if kindOf(lastOf(members, name)) == 't' {
			return name
		}
	}
	if raw := lastOf(members, "prompt_logprobs"); raw != nil && kindOf(raw) != 'n' {
		return "prompt_logprobs"
	}
	var prompts []any
	if kind == openai.Completion && json.Unmarshal(lastOf(members, "prompt"), &prompts) == nil && len(prompts) > 1 {
		switch prompts[0].(type) {
		case string, []any:
			return "prompt"
		}
	}
	return ""
}

// edge is the border between two events.
var edge = regexp.MustCompile(`\n\r?\n`)

// eventsOf splits a stream into events without the blank lines around them.
func eventsOf(stream []byte) (events []string) {
	for {
		at := edge.FindIndex(stream)
		if at == nil {
			return events
		}
		if e := strings.Trim(string(stream[:at[0]]), "\r\n"); e != "" {
			events = append(events, e)
		}
		stream = stream[at[1]:]
	}
}

// FuzzEvents splits a stream into any reads: the events are the same, none of them is held back, split or
// joined to another, and no byte is lost.
func FuzzEvents(f *testing.F) {
	for _, cuts := range []string{"\x01", "\x03", "\x02\x09", "\xff"} {
		f.Add([]byte("data: a\n\ndata: b\r\n\r\n: c\n\ndata: [DONE]\n\n"), []byte(cuts))
		f.Add([]byte("\n\n\n\r\n\r\n\r\n"), []byte(cuts))
		f.Add([]byte("data: {\"choices\":[{\"finish_reason\":\"abort\"},{\"finish_reason\":null}]}\n\n: k\r\n: l\n\ndata: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n"), []byte(cuts))
		f.Add([]byte("event: x\ndata: {\"error\":{}}\n\ndata: a\n\n\nrest"), []byte(cuts))
	}
	f.Fuzz(func(t *testing.T, stream, cuts []byte) {
		if len(cuts) == 0 {
			cuts = []byte{1}
		}
		var buf, sent []byte
		var got []string
		seen := 0
		for rest, i := stream, 0; len(rest) > 0; i++ {
			n := min(int(cuts[i%len(cuts)])+1, len(rest))
			buf, rest = append(buf, rest[:n]...), rest[n:]
			end := sse.EventEnd(buf, seen)
			batch := buf[:end]
			if end > 0 && !bytes.HasSuffix(batch, []byte("\n\n")) && !bytes.HasSuffix(batch, []byte("\n\r\n")) {
				t.Fatalf("%q in reads of %v: %q does not end with an event", stream, cuts, batch)
			}
			for {
				event, tail, ok := sse.NextEvent(batch)
				if !ok {
					break
				}
				if e := strings.Trim(string(event), "\r\n"); e != "" {
					got = append(got, e)
				}
				batch = tail
			}
			left := bytes.Trim(batch, "\r\n")
			require.Empty(t, left, "%q in reads of %v: %q goes out as a part of an event", stream, cuts, left)
			sent = append(sent, buf[:end]...)
			buf = bytes.Clone(buf[end:])
			seen = len(buf)
			require.False(t, edge.Match(buf), "%q in reads of %v: a whole event was held back in %q", stream, cuts, buf)
		}
		joined := append(sent, buf...)
		require.True(t, bytes.Equal(joined, stream), "%q in reads of %v became %q", stream, cuts, joined)
		require.Equal(t, eventsOf(stream), got, "%q in reads of %v: events", stream, cuts)
		for _, e := range got {
			checkMeaning(t, e+"\n\n")
		}
	})
}

// checkMeaning compares the reading of one event with the standard library's.
func checkMeaning(t *testing.T, event string) {
	t.Helper()
	comment := true
	for line := range strings.Lines(event) {
		line = strings.TrimRight(line, "\r\n")
		comment = comment && (line == "" || line[0] == ':')
	}
	if got := sse.KeepsAlive(openai.Chat, []byte(event)); got != comment && strings.Trim(event, "\r\n") != "" {
		t.Fatalf("%q is a comment: %v, want %v", event, got, comment)
	}
	data, isData := strings.CutPrefix(event, "data: ")
	if data = strings.TrimSpace(data); !isData || strings.ContainsAny(data, "\r\n") || !plainJSON(data) {
		return
	}
	var v struct {
		Choices []struct {
			Finish json.RawMessage `json:"finish_reason"`
		} `json:"choices"`
	}
	if json.Unmarshal([]byte(data), &v) != nil {
		return
	}
	aborted, finished := false, false
	for _, c := range v.Choices {
		aborted = aborted || string(c.Finish) == `"abort"`
		finished = finished || c.Finish != nil && string(c.Finish) != "null"
	}
	require.Equal(t, aborted, sse.Aborted(openai.Generate, []byte(event)), "%q is aborted", event)
	require.Equal(t, finished, sse.Finished([]byte(event)), "%q has a finish reason", event)
	require.Equal(t, (sse.SignOf(openai.Chat, []byte(event)) == sse.SignAborted), aborted, "%q", event)
}

// plainJSON reports whether a text is JSON that the standard library reads as we do: without duplicate
// members, and without names that have escapes or differ only in case.
func plainJSON(text string) bool {
	special := func(r rune) bool { return r >= utf8.RuneSelf || r == '\\' || r >= 'A' && r <= 'Z' }
	return json.Valid([]byte(text)) && text[0] == '{' && strings.IndexFunc(text, special) < 0 && strings.Count(text, `"choices"`) <= 1 &&
		strings.Count(text, "{")+strings.Count(text, "[") < jsonscan.MaxDepth
}

// FuzzAnswer compares the reading and the edits of an engine's answer with the standard library's.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		`{"kv_transfer_params":{"a":[1,{"b":9007199254740993}]},"usage":{"prompt_tokens_details":{"cached_tokens":12}}}`,
		` {"kv_transfer\u005fparams":null,"usage":null} `, `{"usage":{"prompt_tokens_details":null,"x":1}}`, `[]`, `{"usage":{}} x`,
		`{"usage":{"prompt_tokens_details":{"cached_tokens":null}},"usage":{"prompt_tokens_details":{"cached_tokens":1,"cached_tokens":2}}}`,
		`{"choices":[{"delta":{"role":"assistant","content":""}}],"error":{"code":503}}`, `{"choices":[{"text":"x","finish_reason":null}]}`,
		`{"usage":{"prompt_tokens_details":{"cached_tokens":"x"}}}`, `{"object":"error","code":"400"}`,
		`{"kv_transfer_params":{"a":1},"kv_transfer_params":{"b":2}}`, `{"a":{"kv_transfer_params":1}}`, `{"a":1, "kv_transfer_params" : [2] } `,
		`{"a":"\",\"kv_transfer_params\":3}","b":4}`, `{"a":["kv_transfer_params"],"b":", ","kv_transfer_params":5}`,
		`{"response":{"id":"x","kv_transfer_params":{"a":1}},"ec_transfer_params":{}}`, `{"ec_transfer_params":1,"kv_transfer_params":2,"a":3}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		members, ok := rawMembers(answer)
		params, err := jsonscan.TopLevel(answer, "kv_transfer_params")
		want := lastOf(members, "kv_transfer_params")
		if kindOf(want) == 'n' {
			want = nil
		}
		require.False(t, (err == nil) != ok && (err == nil || !strings.Contains(err.Error(), "deeply")),
			"%q: %v, encoding/json says %v", answer, err, ok)
		require.False(t, err == nil && !bytes.Equal(params, want), "%q: params %s, want %s", answer, params, want)
		event := append([]byte("data: "), answer...)
		class, code := sse.Classify(openai.Chat, append(event, "\n\n"...))
		if ok && kindOf(lastOf(members, "error")) == '{' && class != sse.EventError && !bytes.ContainsAny(answer, "\n") {
			t.Fatalf("%q is taken for an answer of class %d", answer, class)
		}
		require.False(t, code != 0 && (class != sse.EventError || code < 100 || code > 599),
			"%q: class %d with code %d", answer, class, code)
		cached := response.CachedTokens(openai.Chat, answer)
		if strings.Trim(cached.Tokens, "0123456789") != "" && cached.Tokens != "null" || strings.Trim(cached.Created, "0123456789") != "" {
			t.Fatalf("%q: the numbers of tokens are %+v", answer, cached)
		}
		changed := response.SetCachedTokens(openai.Chat, answer, response.Cached{Tokens: "77"})
		if !ok {
			return
		}
		require.True(t, json.Valid(changed), "%q became %q", answer, changed)
		for _, kind := range openai.Generating() {
			hidden(t, kind, answer, members)
		}
		after, _ := rawMembers(changed)
		path := []string{"usage", "prompt_tokens_details|input_tokens_details", "cached_tokens"}
		if !slices.ContainsFunc(members, func(m rawMember) bool { return m.name == "usage" }) {
			path = append([]string{"response|message"}, path...)
		}
		sameButTokens(t, members, after, path, !bytes.Equal(changed, answer))
	})
}

// hidden fails if HideTransferParams left transfer params in a response, or changed
// anything else.
func hidden(t *testing.T, kind openai.Kind, answer []byte, before []rawMember) {
	t.Helper()
	got := response.HideTransferParams(kind, answer)
	after, ok := rawMembers(got)
	if !ok || !json.Valid(got) {
		t.Fatalf("%s: %q became %q", kind.Path(), answer, got)
	}
	for _, m := range before {
		secret := m.name == "kv_transfer_params" || m.name == "ec_transfer_params"
		if secret && kind == openai.Messages {
			continue
		}
		if len(after) == 0 || !bytes.Equal(after[0].key, m.key) {
			t.Fatalf("%s: %q became %q", kind.Path(), answer, got)
		}
		value := after[0].value
		after = after[1:]
		if secret && kindOf(value) != 'n' || !secret && m.name != "response" && !bytes.Equal(value, m.value) {
			t.Fatalf("%s: %q became %q", kind.Path(), answer, got)
		}
	}
	if len(after) > 0 {
		t.Fatalf("%s: %q became %q", kind.Path(), answer, got)
	}
}

// sameButTokens fails if two objects differ anywhere except in the value at path, which must be 77 if changed
// is true. An element of path may list alternatives separated by |.
func sameButTokens(t *testing.T, before, after []rawMember, path []string, changed bool) {
	t.Helper()
	require.Equal(t, len(after), len(before), "members")
	for i := range before {
		require.True(t, bytes.Equal(before[i].key, after[i].key), "%s became %s", before[i], after[i])
		if bytes.Equal(before[i].value, after[i].value) {
			continue
		}
		switch {
		case !changed || !slices.Contains(strings.Split(path[0], "|"), before[i].name):
			t.Fatalf("%s became %s", before[i], after[i])
		case len(path) == 1:
			if string(after[i].value) != "77" {
				t.Fatalf("%s became %s", before[i], after[i])
			}
		default:
			b, ok1 := rawMembers(before[i].value)
			a, ok2 := rawMembers(after[i].value)
			if !ok1 || !ok2 {
				t.Fatalf("%s became %s", before[i], after[i])
			}
			sameButTokens(t, b, a, path[1:], changed)
		}
	}
}
