package real_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/continuation"
	"github.com/pdmesh/pdmesh/internal/openai"
	openairequest "github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/sim/testkit/pieces"
	"github.com/pdmesh/pdmesh/test/harness"
)

const (
	toCompletions = "/v1/completions"
	toChats       = "/v1/chat/completions"
)

// lesson is a chat that the model of make_chats.py answers word for word.
type lesson struct {
	Name     string
	Messages []message
	Tools    []string
	Answer   string
}

// teach trains a model on the chats of testdata/chats.json and has the rig's engines serve it.
func (r *rig) teach() (list []lesson) {
	r.t.Helper()
	raw, err := os.ReadFile("testdata/chats.json")
	require.NoError(r.t, err)
	require.NoError(r.t, json.Unmarshal(raw, &list))
	r.weights = filepath.Join(r.t.TempDir(), "model")
	cmd := exec.CommandContext(r.t.Context(), filepath.Join(lab.dir, "venv", "bin", "python"),
		absolute("lab/make_chats.py"), r.weights, absolute("testdata/chats.json"), absolute("../../LICENSE"))
	cmd.Env = append(cmd.Environ(), lab.env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(r.t, err)
	logf("the model has learnt: %s", strings.TrimSpace(string(out)))
	return list
}

// body returns the request of a lesson.
func (l *lesson) body() map[string]any {
	b := map[string]any{"model": model, "messages": l.Messages, "temperature": 0, "max_tokens": 300}
	var tools []any
	for _, name := range l.Tools {
		tools = append(tools, map[string]any{"type": "function", "function": map[string]any{
			"name": name, "description": "Reads a key.", "parameters": json.RawMessage(
				`{"type":"object","properties":{"key":{"type":"string"},"depth":{"type":"integer"}}}`)}})
	}
	if tools != nil {
		b["tools"] = tools
	}
	return b
}

// answer is the part of a stream that a client has.
type answer = pieces.Answer

// pieces sends a request as a stream with token ids, and returns the ids of the prompt and the events.
func (r *rig) pieces(url, path string, body map[string]any) (prompt []int, list []pieces.Piece) {
	r.t.Helper()
	body = maps.Clone(body)
	body["stream"], body["return_token_ids"] = true, true
	raw, err := json.Marshal(body)
	require.NoError(r.t, err)
	resp, text, err := harness.Send(r.t.Context(), http.MethodPost, url+path, string(raw))
	require.NoError(r.t, err)
	for line := range strings.SplitSeq(text, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		switch {
		case line == "":
			continue
		case data == "[DONE]":
			return prompt, list
		}
		ids, p, err := pieces.Read(data)
		if !ok || err != nil {
			r.t.Fatalf("%s: status %d, %q: %v", raw, resp.StatusCode, line, err)
		}
		prompt = append(prompt, ids...)
		if p != nil {
			list = append(list, *p)
		}
	}
	r.t.Fatalf("%s: the stream does not end: %s", raw, text)
	return nil, nil
}

// rest continues after a history of ids.
func (r *rig) rest(url, path string, body map[string]any, prompt, history []int) answer {
	r.t.Helper()
	body = maps.Clone(body)
	body["max_tokens"] = body["max_tokens"].(int) - len(history)
	ids := slices.Concat(prompt, history)
	if path == toCompletions {
		body["prompt"] = ids
	} else {
		body["kv_transfer_params"] = map[string]any{"prompt_token_ids": ids}
	}
	echoed, list := r.pieces(url, path, body)
	if !slices.Equal(echoed, ids) {
		r.t.Fatalf("the prompt is %v, not %v", echoed, ids)
	}
	return pieces.Join(list)
}

// detokenize returns an engine's text of ids.
func (r *rig) detokenize(url string, ids []int) string {
	r.t.Helper()
	raw, err := json.Marshal(map[string]any{"model": model, "tokens": ids})
	require.NoError(r.t, err)
	status, body, err := r.callAt(url, http.MethodPost, "/detokenize", string(raw))
	var v struct{ Prompt string }
	if err == nil {
		err = json.Unmarshal(body, &v)
	}
	if err != nil || status != http.StatusOK {
		r.t.Fatalf("detokenize: %d, %v: %s", status, err, body)
	}
	return v.Prompt
}

// TestContinueVLLM checks the assumptions of the proxy and the simulated engine about vLLM's token ids in
// streams and continuations from ids.
func TestContinueVLLM(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	lessons := r.teach()
	for _, parser := range []string{"qwen3", "deepseek_r1"} {
		r.more = []string{"--reasoning-parser", parser}
		e, err := r.launch("continue-"+parser, "")
		require.NoError(t, err)
		if parser == "qwen3" {
			t.Run("shapes", func(t *testing.T) { r.with(t).idShapes(e.url()) })
			t.Run("completions", func(t *testing.T) { r.with(t).continueTexts(e.url(), &lessons[0]) })
			t.Run("stop strings", func(t *testing.T) { r.with(t).continueStops(e.url(), &lessons[3]) })
			t.Run("beyond the end", func(t *testing.T) { r.with(t).continueBeyond(e.url(), &lessons[0]) })
			t.Run("not from ids", func(t *testing.T) { r.with(t).continueRefused(e.url(), &lessons[0]) })
		}
		for i := range lessons {
			if parser != "qwen3" && i%2 == 1 {
				continue // one with calls, and two without, are enough
			}
			t.Run(parser+" "+lessons[i].Name, func(t *testing.T) { r.with(t).continueChats(e.url(), &lessons[i]) })
		}
		require.NoError(t, e.Stop(t.Context()))
	}
}

// with returns the rig for a subtest.
func (r *rig) with(t *testing.T) *rig {
	c := *r
	c.t = t
	return &c
}

// idShapes checks where ids are in events.
func (r *rig) idShapes(url string) {
	for _, tt := range []struct{ path, body, first, next, last string }{
		{toCompletions, `{"model":"tiny","prompt":"The license","max_tokens":3,"temperature":0,"stream":true,"return_token_ids":true}`,
			`"prompt_token_ids":[`, `"prompt_token_ids":null,"token_ids":[`, `"token_ids":[`},
		{toCompletions, `{"model":"tiny","prompt":"The license","max_tokens":3,"temperature":0,"stream":true}`,
			`"prompt_token_ids":null,"token_ids":null}]`, `"prompt_token_ids":null,"token_ids":null}]`, `"token_ids":null`},
		{toChats, `{"model":"tiny","messages":[{"role":"user","content":"Name three colours."}],"max_tokens":3,"temperature":0,"stream":true,"return_token_ids":true}`,
			`"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[`, `"token_ids":[`, `"token_ids":[`},
		{toChats, `{"model":"tiny","messages":[{"role":"user","content":"Name three colours."}],"max_tokens":3,"temperature":0,"stream":true,"return_token_ids":true,"include_reasoning":false}`,
			`"prompt_token_ids":[`, `"token_ids":null`, `"token_ids":null`},
		{toCompletions, `{"model":"tiny","prompt":"The license","max_tokens":8,"temperature":0,"stream":true,"return_token_ids":true,"stream_interval":3}`,
			`"token_ids":[`, `"token_ids":[`, `"token_ids":[`},
	} {
		status, raw, err := r.callAt(url, http.MethodPost, tt.path, tt.body)
		events := strings.Split(strings.TrimSuffix(string(raw), "\n\n"), "\n\n")
		if err != nil || status != http.StatusOK || len(events) < 3 || events[len(events)-1] != "data: [DONE]" {
			r.t.Fatalf("%s: %d, %v: %s", tt.body, status, err, raw)
		}
		for _, check := range []struct{ event, has string }{{events[0], tt.first}, {events[1], tt.next}, {events[len(events)-2], tt.last}} {
			if !strings.Contains(check.event, check.has) {
				r.t.Errorf("%s: %s has no %s", tt.body, check.event, check.has)
			}
		}
	}
}

// continueTexts continues a completion from ids at each event. The ids are exact. The text is exact, too,
// unless the history ends inside a character: then it begins with the whole prompt and history.
func (r *rig) continueTexts(url string, l *lesson) {
	prompt, _ := r.pieces(url, toChats, l.body())
	for _, interval := range []int{1, 3} {
		body := map[string]any{"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 300, "stream_interval": interval}
		_, all := r.pieces(url, toCompletions, body)
		want := pieces.Join(all)
		if want.Text != l.Answer {
			r.t.Fatalf("the answer is %q, not %q", want.Text, l.Answer)
		}
		whole, half := 0, 0
		for cut := 1; cut < len(all); cut++ {
			has := pieces.Join(all[:cut])
			text := r.detokenize(url, has.IDs)
			isHalf := strings.HasSuffix(text, "\ufffd")
			if cut%3 != 0 && !isHalf {
				continue
			}
			got := r.rest(url, toCompletions, body, prompt, has.IDs)
			if !slices.Equal(append(slices.Clone(has.IDs), got.IDs...), want.IDs) {
				r.t.Errorf("after %d events the ids are %v, not the rest of %v", cut, got.IDs, want.IDs)
			}
			switch {
			case isHalf:
				half++
				if !strings.Contains(got.Text, "secret word is tangerine") || !strings.Contains(got.Text, has.Text) {
					r.t.Errorf("after half a character: %q", got.Text)
				}
			case text != has.Text || has.Text+got.Text != want.Text || has.Finish+got.Finish != want.Finish:
				r.t.Errorf("after %d events: %q and %q are not %q", cut, has.Text, got.Text, want.Text)
			default:
				whole++
			}
		}
		logf("completions, %d ids per event: %d cuts exact, %d in half a character", interval, whole, half)
		if half == 0 {
			r.t.Error("no event ends in half a character")
		}
	}
}

// continueStops checks that the text is shorter than the text of the ids by the longest stop string less one
// character. A continuation from the ids whose text was sent must end like the answer.
func (r *rig) continueStops(url string, l *lesson) {
	prompt, _ := r.pieces(url, toChats, l.body())
	body := map[string]any{"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 300, "stop": []string{"許諾 is a", "zzz"}}
	_, all := r.pieces(url, toCompletions, body)
	want := pieces.Join(all)
	if end, _, _ := strings.Cut(l.Answer, "許諾"); want.Text != end || want.Finish != "stop" {
		r.t.Fatalf("the answer is %q, not %q", want.Text, end)
	}
	tried, behind := 0, 0
	for cut := 1; cut < len(all); cut++ {
		has := pieces.Join(all[:cut])
		text := strings.TrimRight(r.detokenize(url, has.IDs), "\ufffd")
		if n := utf8.RuneCountInString(text) - utf8.RuneCountInString(has.Text); n != min(6, utf8.RuneCountInString(text)) {
			r.t.Errorf("after %d events %d characters are held back: %q of %q", cut, n, has.Text, text)
		} else if n > 0 {
			behind++
		}
		history := has.IDs
		for len(history) > 0 && !strings.HasPrefix(has.Text, r.detokenize(url, history)) {
			history = history[:len(history)-1]
		}
		if len(history) == 0 || cut%2 == 0 {
			continue
		}
		tried++
		sent := r.detokenize(url, history)
		got := r.rest(url, toCompletions, body, prompt, history)
		if sent+got.Text != want.Text || got.Finish != "stop" {
			r.t.Errorf("after %q comes %q %s, not the rest of %q", sent, got.Text, got.Finish, want.Text)
		}
	}
	logf("stop strings: text held back at %d events, %d continuations exact", behind, tried)
}

// continueBeyond has the proxy's package continue answers with special tokens (ignore_eos), which streams
// skip and /detokenize does not.
func (r *rig) continueBeyond(url string, l *lesson) {
	chat := l.body()
	prompt, _ := r.pieces(url, toChats, chat)
	chat["stream"], chat["max_tokens"], chat["ignore_eos"] = true, 150, true
	text := maps.Clone(chat)
	delete(text, "messages")
	text["prompt"] = prompt
	send := func(path string, body map[string]any) string {
		body = maps.Clone(body)
		body["return_token_ids"] = true
		raw, err := json.Marshal(body)
		require.NoError(r.t, err)
		_, stream, err := harness.Send(r.t.Context(), http.MethodPost, url+path, string(raw))
		require.NoError(r.t, err)
		return stream
	}
	said := func(stream string) answer {
		var list []pieces.Piece
		for event := range strings.SplitSeq(stream, "\n\n") {
			if data := strings.TrimPrefix(event, "data: "); data != "" && data != "[DONE]" {
				_, p, err := pieces.Read(data)
				require.NoError(r.t, err)
				if p != nil {
					list = append(list, *p)
				}
			}
		}
		return pieces.Join(list)
	}
	for path, body := range map[string]map[string]any{toChats: chat, toCompletions: text} {
		stream := send(path, body)
		events, want := strings.SplitAfter(stream, "\n\n"), said(stream)
		raw, err := json.Marshal(body)
		require.NoError(r.t, err)
		kind := map[string]openai.Kind{toChats: openai.Chat, toCompletions: openai.Completion}[path]
		exact, beyond := 0, 0
		for cut := 2; cut < len(events)-3; cut += 7 {
			req, err := openairequest.Parse(kind, raw)
			require.NoError(r.t, err)
			a := continuation.New(req, 1, nil)
			first, err := a.Pass([]byte(strings.Join(events[:cut], "")))
			require.NoError(r.t, err)
			client, asked := string(first), 0
			next, why := a.Next(func(ids []byte) (string, error) {
				var list []int
				err := json.Unmarshal(ids, &list)
				asked++
				return r.detokenize(url, list), err
			})
			if why != "" {
				r.t.Errorf("%s, after %d events: %s", path, cut, why)
				continue
			}
			leg := maps.Clone(body)
			leg["max_tokens"] = next.Request.MaxTokens
			if path == toChats {
				leg["kv_transfer_params"] = map[string]any{"prompt_token_ids": json.RawMessage(next.Request.PromptTokenIDs)}
			} else {
				leg["prompt"] = json.RawMessage(next.Request.Raw(openairequest.FieldPrompt))
			}
			rest, err := a.Pass([]byte(send(path, leg)))
			require.NoError(r.t, err)
			if got := said(client + string(rest)); got.Text != want.Text || got.Reasoning != want.Reasoning || got.Finish != want.Finish {
				r.t.Errorf("%s, after %d events: %+v, not %+v", path, cut, got, want)
			}
			if exact++; asked > 2 {
				beyond++
			}
		}
		logf("%s beyond the end: %d continuations exact, %d after more than one look at the text", path, exact, beyond)
		if beyond == 0 && path == toCompletions { // with this parser, chats have the text of special tokens
			r.t.Errorf("%s: no special token in %v", path, want.IDs)
		}
	}
}

// continueRefused checks the requests that are not continued from ids.
func (r *rig) continueRefused(url string, l *lesson) {
	body := l.body()
	prompt, all := r.pieces(url, toChats, body)
	want := pieces.Join(all)
	history := want.IDs[:9]
	with := func(name string, value any) map[string]any {
		b := maps.Clone(body)
		b[name] = value
		return b
	}
	echo := with("echo", true)
	echo["kv_transfer_params"] = map[string]any{"prompt_token_ids": slices.Concat(prompt, history)}
	if echoed, list := r.pieces(url, toChats, echo); !slices.Equal(echoed, prompt) || pieces.Join(list).Text == "" {
		r.t.Errorf("with echo the prompt is %v, not that of the messages", echoed)
	}
	format := map[string]any{"type": "json_schema", "json_schema": map[string]any{
		"name": "key", "schema": json.RawMessage(`{"type":"object","properties":{"key":{"type":"string","maxLength":9}},"required":["key"],"additionalProperties":false}`)}}
	for name, b := range map[string]map[string]any{"json_schema": with("response_format", format), "seed": with("seed", 7)} {
		if name == "seed" {
			b["temperature"] = 1.9
		}
		p, all := r.pieces(url, toChats, b)
		whole := pieces.Join(all)
		n := len(whole.IDs) - 4
		got := r.rest(url, toChats, b, p, whole.IDs[:n])
		exact := slices.Equal(got.IDs, whole.IDs[n:])
		logf("%s: exact is %v: %q %q, then %q", name, exact, whole.Reasoning, whole.Text, got.Reasoning+got.Text)
		if _, again := r.pieces(url, toChats, b); !slices.Equal(pieces.Join(again).IDs, whole.IDs) {
			r.t.Errorf("%s: the same request has another answer", name)
		}
		if exact {
			r.t.Errorf("%s is continued exactly", name)
		}
	}
	for _, ids := range []string{`[]`, `[1.5]`, `[999999]`} {
		raw := `{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":4,"stream":true,"kv_transfer_params":{"prompt_token_ids":` + ids + `}}`
		if status, answer, err := r.callAt(url, http.MethodPost, toChats, raw); err != nil || status != http.StatusBadRequest {
			r.t.Errorf("%s: %d, %v: %s", ids, status, err, answer)
		}
	}
}

// continueChats continues a chat with reasoning and tool calls.
func (r *rig) continueChats(url string, l *lesson) {
	body := l.body()
	prompt, all := r.pieces(url, toChats, body)
	want := pieces.Join(all)
	counts := map[string]int{}
	for cut := 1; cut < len(all); cut++ {
		has := pieces.Join(all[:cut])
		raw := r.detokenize(url, has.IDs)
		isHalf := strings.HasSuffix(raw, "\ufffd")
		open := strings.Count(raw, "<tool_call>") > strings.Count(raw, "</tool_call>")
		if cut%6 != 0 && (!isHalf || cut%3 != 0) && !strings.HasSuffix(raw, ">") {
			continue
		}
		got := r.rest(url, toChats, body, prompt, has.IDs)
		if !slices.Equal(append(slices.Clone(has.IDs), got.IDs...), want.IDs) {
			r.t.Errorf("after %q the ids are %v", raw, got.IDs)
		}
		calls := append(slices.Clone(has.Calls), got.Calls...)
		switch {
		case isHalf:
			counts["half a character"]++
			if i := strings.Index(got.Reasoning+got.Text, l.Messages[len(l.Messages)-1].Content); i < 0 && !open {
				r.t.Errorf("after half a character: %q %q", got.Reasoning, got.Text)
			}
		case open:
			counts["open call"]++
			if !strings.Contains(got.Text, "</tool_call>") {
				r.t.Errorf("inside of a call, after %q: %+v", raw, got)
			}
		case has.Reasoning+got.Reasoning != want.Reasoning || strings.TrimSpace(has.Text+got.Text) != strings.TrimSpace(want.Text) || !slices.Equal(calls, want.Calls):
			r.t.Errorf("after %q: %+v and %+v are not %+v", raw, has, got, want)
		case len(got.Calls) > 0 && got.Finish != "tool_calls", len(got.Calls) == 0 && got.Finish != "stop":
			r.t.Errorf("after %q the finish reason is %s", raw, got.Finish)
		default:
			counts["exact"]++
			if has.Text+got.Text != want.Text {
				counts["exact but for white space"]++
			}
		}
	}
	logf("%s: %v", l.Name, counts)
}
