package clients_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// TestReaders_ReportDefects checks that each reader accepts the response of an engine and reports every defect
// that its tool would report.
func TestReaders_ReportDefects(t *testing.T) {
	t.Parallel()
	const (
		one   = `data: {"choices":[{"index":0,"text":" a b","finish_reason":null}],"usage":{"prompt_tokens":2,"completion_tokens":1}}` + "\n\n"
		two   = `data: {"choices":[{"index":0,"text":" c","finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":2}}` + "\n\n"
		usage = `data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":2}}` + "\n\n"
		done  = "data: [DONE]\n\n"
		fail  = `data: {"error":{"message":"x","code":500}}` + "\n\n"
		probs = `{"tokens":["x","y"," c"],"token_logprobs":[null,-1,-2],"top_logprobs":[null,{"y":-1},{" c":-2}],"text_offset":[0,1,2]}`
		whole = `{"choices":[{"index":0,"text":"xy c","logprobs":` + probs + `}]}`
	)
	stream := []fakevllm.Answer{{Text: " a b c", Tokens: []int{1, 2}, PromptTokens: 2}}
	echoed := []fakevllm.Answer{{Text: "xy c", Tokens: []int{1}, PromptTokens: 2}}
	cut := strings.Index(one, " b") + 1 // after a blank, which stripping loses
	for _, tt := range []struct {
		name, reader string
		chunks       []string
		want         []fakevllm.Answer
		bad          bool
	}{
		{"whole events", "vllm-bench", []string{one, two, usage, done}, stream, false},
		{"events joined", "vllm-bench", []string{one + two, usage + done}, stream, false},
		{"an event cut", "vllm-bench", []string{one[:cut], one[cut:], two, usage, done}, stream, true},
		{"no usage", "vllm-bench", []string{one, two[:strings.Index(two, `,"usage`)] + "}\n\n", done}, stream, true},
		{"no token", "vllm-bench", []string{usage, done}, stream, true},
		{"text lost", "vllm-bench", []string{two, usage, done}, stream, true},
		{"whole events", "aiperf", []string{one, two, usage, done}, stream, false},
		{"cut anywhere", "aiperf", []string{one[:cut], one[cut:] + two[:9], two[9:], usage + done}, stream, false},
		{"no [DONE]", "aiperf", []string{one, two, usage}, stream, true},
		{"something behind [DONE]", "aiperf", []string{one, two, done, usage}, stream, true},
		{"no finish reason", "aiperf", []string{one, strings.Replace(two, `"length"`, "null", 1), usage, done}, stream, true},
		{"two fields", "aiperf", []string{"event: x\n" + one, two, usage, done}, stream, true},
		{"an error", "aiperf", []string{one, two, fail, done}, stream, true},
		{"usage in each", "guidellm", []string{one, two, usage, done}, stream, false},
		{"nothing behind [DONE] is read", "guidellm", []string{one, two, usage, done + fail}, stream, false},
		{"no [DONE]", "guidellm", []string{one, two, usage}, stream, true},
		{"an error", "guidellm", []string{one, fail, done}, stream, true},
		{"logprobs", "lm-eval-loglikelihood", []string{whole}, echoed, false},
		{"of the answer only", "lm-eval-loglikelihood", []string{strings.Replace(whole, "null,-1,", "", 1)}, echoed, true},
		{"none", "lm-eval-loglikelihood", []string{strings.Replace(whole, probs, "null", 1)}, echoed, true},
		{"none for a token", "lm-eval-loglikelihood", []string{strings.Replace(whole, `null,-1`, "null,null", 1)}, echoed, true},
		{"choices out of order", "lm-eval-generate", []string{`{"choices":[{"index":1,"text":"b"},{"index":0,"text":"a"}]}`}, []fakevllm.Answer{{Text: "a"}, {Text: "b"}}, false},
		{"a choice twice", "lm-eval-generate", []string{`{"choices":[{"index":0,"text":"a"},{"index":0,"text":"b"}]}`}, []fakevllm.Answer{{Text: "a"}, {Text: "b"}}, true},
		{"a choice lost", "lm-eval-generate", []string{`{"choices":[{"index":0,"text":"a"}]}`}, []fakevllm.Answer{{Text: "a"}, {Text: "b"}}, true},
		{"no text", "lm-eval-generate", []string{`{"choices":[{"index":0,"message":{"content":null}}]}`}, []fakevllm.Answer{{Text: "a"}}, true},
	} {
		t.Run(tt.reader+" "+tt.name, func(t *testing.T) {
			t.Parallel()
			r := &reply{}
			for _, c := range tt.chunks {
				r.chunks = append(r.chunks, []byte(c))
			}
			if err := r.readAs(tt.reader, []string{"1"}, tt.want); errors.Is(err, errRead) != tt.bad || !tt.bad && err != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestBadRecordings(t *testing.T) {
	t.Parallel()
	const head = "tool: x\nversion: 1\nclient: y\n"
	const get = "=== a\n> GET / HTTP/1.1\n> Host: {host}\n>\n? status 200\n"
	for name, tt := range map[string]struct{ text, says string }{
		"good":              {head + get, ""},
		"nothing":           {"", "has no tool"},
		"no version":        {strings.Replace(head, "version: 1\n", "", 1) + get, "has no tool"},
		"no exchange":       {head, "has no tool"},
		"unknown field":     {"maker: x\n" + head + get, "before the first exchange"},
		"unknown mark":      {head + get + "! x\n", "without a mark"},
		"nothing required":  {head + strings.Replace(get, "? status 200\n", "", 1), "requires nothing"},
		"no length":         {head + strings.Replace(get, ">\n", ">\n> {}\n", 1), "length is wrong"},
		"wrong length":      {head + strings.Replace(get, ">\n", "> Content-Length: 3\n>\n> {}\n", 1), "length is wrong"},
		"length of nothing": {head + strings.Replace(get, ">\n", "> Content-Length: 2\n>\n", 1), "length is wrong"},
		"nothing, and said": {head + strings.Replace(get, ">\n", "> Content-Length: 0\n>\n", 1), ""},
		"body of two lines": {head + strings.Replace(get, ">\n", "> Content-Length: 2\n>\n> {}\n> {}\n", 1), "two lines"},
		"no request line":   {head + "=== a\n> GET\n>\n? status 200\n", "no request line"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "r.txt")
			require.NoError(t, os.WriteFile(file, []byte(tt.text), 0o600))
			_, err := readRecording(file)
			if (err != nil) != (tt.says != "") || err != nil && (!errors.Is(err, errRecording) || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%v", err)
			}
		})
	}
}
