package loadgen

import (
	"encoding/json"
	"fmt"
	"testing"
)

// reference reads a chunk with encoding/json.
func reference(data []byte) (text string, finish string, choices int, err error) {
	var v struct {
		Choices []struct {
			Text  *string `json:"text"`
			Delta struct {
				Content *string `json:"content"`
			} `json:"delta"`
			Finish *string `json:"finish_reason"`
		} `json:"choices"`
	}
	err = json.Unmarshal(data, &v)
	for _, c := range v.Choices {
		if c.Text != nil {
			text += *c.Text
		}
		if c.Delta.Content != nil {
			text += *c.Delta.Content
		}
		if c.Finish != nil {
			finish += *c.Finish
		}
	}
	return text, finish, len(v.Choices), err
}

var chunkSeeds = []string{
	`{"choices":[{"text":"a"}]}`,
	` { "choices" : [ { "text" : "a\n\"\\\/\b\f\r\t" , "finish_reason" : "length" } ] } `,
	`{"choices":[{"text":"\u00e9\ud83d\ude42\ud83dx\ude42"}]}`,
	`{"choices":[{"text":"é🙂"},{"text":"b"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"details":{"x":[1,{}]}}}`,
	`{"choices":[{"delta":{"role":"assistant","content":"hi","tool_calls":[{"f":"}]\""}]},"finish_reason":null}]}`,
	`{"choices":[],"usage":null}`,
	`{"a":[1,-2.5e3,true,false,null,"\\",[[]],{"b":{}}],"choices":[{"text":null}]}`,
	`{}`,
}

func TestChunk(t *testing.T) {
	t.Parallel()
	for _, s := range chunkSeeds {
		var k chunk
		if err := k.parse([]byte(s)); err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		text, finish, choices, err := reference([]byte(s))
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		if string(k.text) != text || string(k.finish) != finish || k.choices != choices {
			t.Errorf("%s: got %q %q %d, want %q %q %d", s, k.text, k.finish, k.choices, text, finish, choices)
		}
	}
}

func TestChunkUsageAndError(t *testing.T) {
	t.Parallel()
	var k chunk
	if err := k.parse([]byte(`{"error":{"message":"x"},"choices":[]}`)); err != nil || !k.isError {
		t.Errorf("error event: %v, %v", err, k.isError)
	}
	if err := k.parse([]byte(`{"usage":{"prompt_tokens":12,"completion_tokens":3},"error":null}`)); err != nil {
		t.Fatal(err)
	}
	if k.isError || !k.usage || k.prompt != 12 || k.output != 3 {
		t.Errorf("got %+v", k)
	}
}

func TestChunkRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		``, `[]`, `{`, `{"choices"}`, `{"choices":}`, `{"choices":[}`, `{"choices":[{"text":"a}]}`, `{"choices":[{"text":1}]}`,
		`{"choices":[{"text":"\x"}]}`, `{"choices":[{"text":"\u12"}]}`, "{\"choices\":[{\"text\":\"a\x01\"}]}", `{} {}`, `{"a":1,}`, `{"a":[1}`,
		`{"usage":{"prompt_tokens":1.5}}`, `{"usage":{"prompt_tokens":"1"}}`, `{"choices":{}}`, `{"a":]}`, `{"a"`, `{"a":"\`,
	} {
		var k chunk
		if err := k.parse([]byte(s)); err == nil {
			t.Errorf("%s was taken as %+v", s, k)
		}
	}
}

// FuzzChunk: any bytes are taken or refused without a panic, and what
// encoding/json wrote is read back as it was, whatever surrounds it.
func FuzzChunk(f *testing.F) {
	for _, s := range chunkSeeds {
		f.Add([]byte(s), " bakoti", "length")
	}
	f.Fuzz(func(t *testing.T, noise []byte, text, finish string) {
		var k chunk
		_ = k.parse(noise) // only must not panic or hang
		if !json.Valid(noise) {
			noise = []byte("null")
		}
		encode := func(s string) string {
			raw, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			return string(raw)
		}
		data := fmt.Sprintf(`{"before":%s,"choices":[{"index":0,"logprobs":%s,"text":%s,"finish_reason":%s,"after":%s}],"behind":%s}`,
			noise, noise, encode(text), encode(finish), noise, noise)
		if err := k.parse([]byte(data)); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		wantText, wantFinish, _, err := reference([]byte(data))
		if err != nil {
			t.Fatal(err)
		}
		if string(k.text) != wantText || string(k.finish) != wantFinish || k.choices != 1 || k.usage || k.isError {
			t.Fatalf("%s: got %q %q %d %v %v", data, k.text, k.finish, k.choices, k.usage, k.isError)
		}
	})
}

func BenchmarkChunk(b *testing.B) {
	data := []byte(`{"id":"cmpl-3f0e","object":"text_completion","created":1763719200,"model":"demo/tiny","choices":[{"index":0,"text":" bakoti","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}`)
	var k chunk
	b.ReportAllocs()
	for b.Loop() {
		if err := k.parse(data); err != nil {
			b.Fatal(err)
		}
	}
}
