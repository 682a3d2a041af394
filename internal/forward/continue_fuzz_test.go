package forward_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/testkit/sseanswer"
)

// The tokens of breakingEngine: letters, the halves of a character, and the prompt.
const (
	halfA  = 300
	halfB  = 301
	prompt = 900
)

// textOf returns the text that an engine detokenizes.
func textOf(ids []int) string {
	var b strings.Builder
	for _, id := range ids {
		switch id {
		case halfA:
			b.WriteByte(0xc3)
		case halfB:
			b.WriteByte(0xb6)
		case prompt:
			b.WriteString("a prompt that no client may see ")
		default:
			b.WriteByte('a' + byte(id-1))
		}
	}
	return b.String()
}

// breakingEngine is an upstream client whose engines write one answer, from any of its tokens on. A script
// breaks the decode legs.
type breakingEngine struct {
	scriptedClient

	kind   openai.Kind
	ids    []int  // of the whole answer
	script []byte // a leg takes three bytes
	lag    int    // characters that are held back for a stop string
	lies   bool   // engines report a wrong token id before they break
	wrong  string // the last request that was not as expected
}

func (s *breakingEngine) next() (b byte) {
	if len(s.script) > 0 {
		b, s.script = s.script[0], s.script[1:]
	}
	return b
}

func (s *breakingEngine) Do(ctx context.Context, r *upstream.Request) (*upstream.Response, error) {
	var body struct {
		Tokens   []int
		Prompt   json.RawMessage
		Max      int `json:"max_tokens"`
		Transfer struct {
			Prompt []int `json:"prompt_token_ids"`
		} `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(bytes.Join(r.Body, nil), &body); err != nil {
		return nil, err
	}
	whole := func(v any) (*upstream.Response, error) {
		b, err := json.Marshal(v)
		return &upstream.Response{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Length: int64(len(b)), Body: io.NopCloser(bytes.NewReader(b))}, err
	}
	switch {
	case r.Path == "/detokenize":
		return whole(map[string]string{"prompt": strings.ToValidUTF8(textOf(body.Tokens), "\uFFFD")})
	case r.Instance.Role == instance.Prefill:
		return whole(map[string][]int{"choices": {}})
	}
	all := body.Transfer.Prompt
	if len(body.Prompt) > 0 && body.Prompt[0] == '[' {
		if err := json.Unmarshal(body.Prompt, &all); err != nil {
			return nil, err
		}
	}
	from := max(len(all)-2, 0)
	if from > len(s.ids) || from > 0 && !slices.Equal(all, append([]int{prompt, prompt}, s.ids[:from]...)) || body.Max != len(s.ids)-from {
		s.wrong = fmt.Sprintf("prompt %v, max_tokens %d", all, body.Max)
	}
	leg := s.scriptedClient
	leg.header, leg.length, leg.end = http.Header{"Content-Type": {"text/event-stream"}}, -1, io.EOF
	leg.answer = s.leg(min(from, len(s.ids)))
	leg.cuts = []byte{s.next(), 200}
	return leg.Do(ctx, r)
}

// leg writes the stream of a leg that begins at a token.
func (s *breakingEngine) leg(from int) []byte {
	packed, left, how := 1+int(s.next()&3), int(s.next()&31), s.next()%5
	var out bytes.Buffer
	event := func(text, finish string, prompts, ids []int) {
		if left--; left == 0 {
			switch how {
			case 1:
				out.WriteString(`data: {"error":{"message":"m","type":"t","param":null,"code":500}}` + "\n\ndata: [DONE]\n\n")
			case 2:
				finish = `"abort"`
			case 3:
				out.WriteString(`data: {"id":"x","cho`)
			}
		}
		if left < 0 && how > 0 || left == 0 && how != 2 && how > 0 {
			return
		}
		lists := [2]string{"null", "null"}
		for i, l := range [][]int{prompts, ids} {
			if s.lies && s.lag == 0 && left == 1 && len(l) > 0 { // only the ids of text that is held back are known
				l = slices.Clone(l)
				l[len(l)-1] = l[len(l)-1]%26 + 1
			}
			if l != nil {
				b, _ := json.Marshal(l)
				lists[i] = string(b)
			}
		}
		quoted, _ := json.Marshal(text)
		if s.kind == openai.Completion {
			fmt.Fprintf(&out, `data: {"id":"leg-%d","object":"text_completion","created":%d,"model":"m","choices":[{"index":0,"text":%s,"logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":%s,"token_ids":%s}]}`+"\n\n",
				from, from, quoted, finish, lists[0], lists[1])
			return
		}
		delta := "{}"
		switch {
		case prompts != nil:
			delta = `{"role":"assistant","content":""}`
		case text != "":
			delta = `{"content":` + string(quoted) + `}`
		}
		fmt.Fprintf(&out, `data: {"id":"leg-%d","object":"chat.completion.chunk","created":%d,"model":"m","choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s,"token_ids":%s}],"prompt_token_ids":%s}`+"\n\n",
			from, from, delta, finish, lists[1], lists[0])
	}
	prompts := append([]int{prompt, prompt}, s.ids[:from]...)
	if s.kind == openai.Chat {
		event("", "null", prompts, nil)
		prompts = nil
	}
	base := textOf(prompts)
	if s.kind == openai.Chat {
		base = textOf(append([]int{prompt, prompt}, s.ids[:from]...))
	}
	if base[len(base)-1] != 0xc3 { // otherwise vLLM repeats the whole text
		base = ""
	}
	sent := 0
	for at := from; at < len(s.ids); at += packed {
		end := min(at+packed, len(s.ids))
		text := strings.TrimSuffix(base+textOf(s.ids[from:end]), "\xc3")
		finish := "null"
		if end == len(s.ids) {
			finish = `"length"`
		} else if runes := []rune(text); s.lag > 0 {
			text = string(runes[:max(0, len(runes)-s.lag)])
		}
		event(text[sent:], finish, prompts, s.ids[at:end])
		sent, prompts = len(text), nil
	}
	if left > 0 || how == 0 {
		fmt.Fprintf(&out, `data: {"id":"leg-%d","choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}`+"\n\ndata: [DONE]\n\n",
			from, from+2, len(s.ids)+2, len(s.ids)-from)
	}
	return out.Bytes()
}

// FuzzRelayContinued breaks the legs of a stream anywhere. The client gets the whole answer, or a part of it
// that visibly breaks off, even if engines report wrong token ids.
func FuzzRelayContinued(f *testing.F) {
	for how := range byte(6) {
		for _, tokens := range []string{"the sea", "s\xf0\xf0\xf0\xf0a\xf0", strings.Repeat("long \xe0", 12), "x"} {
			for variant := range byte(8) {
				f.Add([]byte(tokens), []byte{variant, 3, how, 9, 1, 2, 1, 80, 2, 4, how, 0}, variant)
				f.Add([]byte(tokens), []byte{0, 1 + 2*variant, how, 1, 0, 2, how, 0, 1, 5, how}, variant)
			}
		}
	}
	f.Fuzz(func(t *testing.T, tokens, script []byte, variant byte) {
		s := &breakingEngine{kind: openai.Completion, script: script, lies: variant&4 != 0}
		for i, b := range tokens[:min(len(tokens), 60)] {
			if s.ids = append(s.ids, 1+int(b%26)); b >= 0xe0 && i%2 == 0 {
				s.ids = append(s.ids[:len(s.ids)-1], halfA, halfB)
			}
		}
		if len(s.ids) == 0 {
			return
		}
		more := fmt.Sprintf(`"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":%d`, len(s.ids))
		if variant&1 != 0 {
			s.lag, more = 3, more+`,"stop":["0000"]`
		}
		path, body := completionsPath, `{"prompt":"x",`+more+`}`
		if variant&2 != 0 {
			s.kind, path, body = openai.Chat, chatPath, `{"messages":[{"role":"user","content":"x"}],`+more+`}`
		}
		got := relayBody(t, s, path, body, 0, 3)
		require.Equal(t, "", s.wrong)
		if got.status != http.StatusOK { // nothing was committed
			require.True(t, !got.broken && json.Valid(got.body), "%d, broken %v: %s", got.status, got.broken, got.body)
			return
		}
		a, err := sseanswer.Read(string(got.body))
		require.NoError(t, err, "%s", got.body)
		want := textOf(s.ids)
		whole := a.Done == 1 && a.Text == want && a.Finish == "length" && a.Usage == sseanswer.Usage{Prompt: 2, Completion: len(s.ids), Total: len(s.ids) + 2} && a.Error == ""
		cut := a.Done == 0 && strings.HasPrefix(want, a.Text) && a.Error != ""
		if got.broken && !cut || !got.broken && !whole || len(a.Heads) > 1 || len(a.IDs) > 0 || a.Prompts > 0 || a.Roles > 1 {
			t.Fatalf("broken %v, want %q: %+v\n%s", got.broken, want, a, got.body)
		}
	})
}
