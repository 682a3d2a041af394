package answer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/answer"
)

func TestRequest_IsJSON(t *testing.T) {
	t.Parallel()
	for _, length := range []int{18, 128, 2 << 10, 64 << 10} {
		r := answer.NewRequest(answer.Shape{Prompt: length, Tokens: 7, Stream: true})
		r.SetTag(0xab)
		var got struct {
			Messages []struct{ Content string }
			Max      int `json:"max_tokens"`
			Stream   bool
		}
		require.NoError(t, json.Unmarshal(r.Body, &got))
		content := got.Messages[0].Content
		encoded, err := json.Marshal(content)
		require.NoError(t, err)
		if len(encoded)-2 != length || !strings.HasPrefix(content, "#00000000000000ab") || got.Max != 7 || !got.Stream {
			t.Errorf("prompt of %d bytes, want %d; %d tokens, stream %v, %.20q", len(encoded)-2, length, got.Max, got.Stream, content)
		}
	}
}

// parts returns the parts of the response with a tag.
func parts(r *answer.Response, tag uint64) (out []string) {
	r.SetTag(tag)
	for i := range r.Len() {
		out = append(out, string(r.Part(i)))
		if chunk := fmt.Sprintf("%x\r\n%s\r\n", len(out[i]), out[i]); string(r.Chunk(i)) != chunk {
			out[i] = "chunk: " + string(r.Chunk(i))
		}
	}
	return out
}

func TestResponse_Parts(t *testing.T) {
	t.Parallel()
	stream := answer.Shape{Prompt: 18, Tokens: 3, Stream: true}
	got := parts(answer.New(stream.Params(0xcd)), 0xab)
	want := []string{`"role":"assistant"`, " 00000000000000ab.000000.18.000000cd", " 00000000000000ab.000001\"", " 00000000000000ab.000002\"", `"completion_tokens":3`, "data: [DONE]\n\n"}
	require.Len(t, got, len(want), "parts")
	for i := range want {
		assert.True(t, strings.HasPrefix(got[i], "data: ") && strings.Contains(got[i], want[i]),
			"part %d is %q, want %q", i, got[i], want[i])
	}
	whole := parts(answer.New(answer.Params{Tokens: 2, Prompt: 18, Sum: 0xcd, Prefill: true}), 0xab)
	if len(whole) != 1 || !json.Valid([]byte(whole[0])) || !strings.Contains(whole[0], ".000000.18.000000cd 00000000000000ab.000001") ||
		!strings.Contains(whole[0], string(answer.AppendKVName([]byte(`"remote_request_id":`), 0xab, 0xcd))) {
		t.Errorf("whole response %q", whole)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, s := range []answer.Shape{{Prompt: 18, Tokens: 3, Stream: true}, {Prompt: 18, Tokens: 1, Stream: true}, {Prompt: 18, Tokens: 2}} {
		p := s.Params(5)
		right := strings.Join(parts(answer.New(p), 7), "")
		check := func(text string, size int) (tokens int, err error) {
			c := answer.NewCheck(answer.New(p), func() { tokens++ })
			c.Begin(7)
			for len(text) > 0 {
				n := min(size, len(text))
				if _, err := c.Write([]byte(text[:n])); err != nil {
					return tokens, err
				}
				text = text[n:]
			}
			return tokens, c.End()
		}
		for _, size := range []int{1, 7, 200, 1 << 20} {
			if tokens, err := check(right, size); err != nil || s.Stream && tokens != s.Tokens {
				t.Errorf("pieces of %d bytes: %d tokens, %v", size, tokens, err)
			}
		}
		for name, wrong := range map[string]string{
			"cut": right[:len(right)-1], "too long": right + "x", "other tag": strings.Replace(right, "00007", "00008", 1), "empty": "",
		} {
			if _, err := check(wrong, 50); !errors.Is(err, answer.ErrWrong) {
				t.Errorf("%s: error %v, want ErrWrong", name, err)
			}
		}
	}
}
