package clients_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

var errRead = errors.New("the tool counts the request as failed")

func failed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errRead, fmt.Sprintf(format, args...))
}

// readAs parses the response as the given tool does and compares the result.
func (r *reply) readAs(tool string, args []string, want []fakevllm.Answer) error {
	switch tool {
	case "vllm-bench":
		return r.asVLLMBench(want)
	case "guidellm":
		return r.asGuideLLM(want)
	case "aiperf":
		return r.asAIPerf(want)
	case "lm-eval-generate":
		return r.asLMEvalGenerate(want)
	case "lm-eval-loglikelihood":
		return r.asLMEvalLoglikelihood(args, want)
	}
	return fmt.Errorf("%w: no reader for %q", errRecording, tool)
}

// chunkJSON is an event of a stream, or a whole answer.
type chunkJSON struct {
	Choices []choiceJSON
	Usage   *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
	Error json.RawMessage
}

type choiceJSON struct {
	Index        int
	Text         string
	Delta        struct{ Content string }
	Message      struct{ Content *string }
	FinishReason *string `json:"finish_reason"`
	Logprobs     *struct {
		Tokens        []string
		TokenLogprobs []*float64           `json:"token_logprobs"`
		TopLogprobs   []map[string]float64 `json:"top_logprobs"`
		TextOffset    []int                `json:"text_offset"`
	}
}

// streamResult is the content that a tool extracted from a stream.
type streamResult struct {
	text               string
	prompt, completion int
}

func (h streamResult) check(want []fakevllm.Answer) error {
	if w := want[0]; h.text != w.Text || h.prompt != w.PromptTokens || h.completion != len(w.Tokens) {
		return failed("%q with %d and %d tokens, not %q with %d and %d", h.text, h.prompt, h.completion, w.Text, w.PromptTokens, len(w.Tokens))
	}
	return nil
}

// asVLLMBench strips white space at both ends of every piece that the transport returns, and joins the
// pieces. An event split over pieces loses blanks in its text, so pieces must hold whole events.
func (r *reply) asVLLMBench(want []fakevllm.Answer) error {
	for i, c := range r.chunks {
		if !bytes.HasPrefix(c, []byte("data: ")) || !bytes.HasSuffix(c, []byte("\n\n")) {
			return failed("piece %d cuts an event: %q", i, c)
		}
	}
	var messages []string
	rest := ""
	for _, c := range r.chunks {
		rest += strings.TrimSpace(string(c))
		for {
			message, behind, ok := strings.Cut(rest, "\n\n")
			if !ok {
				break
			}
			messages, rest = append(messages, strings.TrimSpace(message)), behind
		}
		if data, ok := strings.CutPrefix(rest, "data: "); ok && (data == "[DONE]" || json.Valid([]byte(data))) {
			messages, rest = append(messages, rest), ""
		}
	}
	var h streamResult
	first := false
	for _, m := range messages {
		data := strings.TrimPrefix(m, "data: ")
		if data == "" || data[0] == ':' || data == "[DONE]" {
			continue
		}
		var e chunkJSON
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return failed("%v in %q", err, data)
		}
		switch {
		case len(e.Choices) > 0:
			first = true
			h.text += e.Choices[0].Text + e.Choices[0].Delta.Content
		case e.Usage != nil:
			h.prompt, h.completion = e.Usage.Prompt, e.Usage.Completion
		}
	}
	if !first || rest != "" {
		return failed("no first chunk, or %q is left", rest)
	}
	return h.check(want)
}

// asGuideLLM reads line by line up to [DONE]; an error object in the stream fails.
func (r *reply) asGuideLLM(want []fakevllm.Answer) error {
	var h streamResult
	for line := range strings.Lines(string(r.body())) {
		line = strings.TrimSpace(line)
		data, ok := strings.CutPrefix(line, "data:")
		switch data = strings.TrimSpace(data); {
		case line == "":
			continue
		case !ok:
			return failed("a line %q", line)
		case data == "[DONE]":
			return h.check(want)
		}
		var e chunkJSON
		if err := json.Unmarshal([]byte(data), &e); err != nil || len(e.Error) > 0 || e.Usage == nil {
			return failed("%v, error %s, or no usage in %q", err, e.Error, data)
		}
		h.prompt, h.completion = e.Usage.Prompt, e.Usage.Completion
		for _, c := range e.Choices {
			h.text += c.Text + c.Delta.Content
		}
	}
	return failed("no [DONE]")
}

// asAIPerf reads messages separated by blank lines, with one data field each. Every choice has a finish
// reason, [DONE] is present, and nothing follows it.
func (r *reply) asAIPerf(want []fakevllm.Answer) error {
	var h streamResult
	finished, done := map[int]bool{}, false
	for message := range strings.SplitSeq(strings.ReplaceAll(string(r.body()), "\r\n", "\n"), "\n\n") {
		message = strings.TrimSpace(message)
		if message == "" {
			continue
		}
		data, ok := strings.CutPrefix(message, "data: ")
		if !ok || strings.Contains(data, "\n") || done {
			return failed("a message %q", message)
		}
		if done = data == "[DONE]"; done {
			continue
		}
		var e chunkJSON
		if err := json.Unmarshal([]byte(data), &e); err != nil || len(e.Error) > 0 {
			return failed("%v, error %s in %q", err, e.Error, data)
		}
		for _, c := range e.Choices {
			h.text += c.Text + c.Delta.Content
			finished[c.Index] = finished[c.Index] || c.FinishReason != nil
		}
		if e.Usage != nil {
			h.prompt, h.completion = e.Usage.Prompt, e.Usage.Completion
		}
	}
	for i, ok := range finished {
		if !ok {
			return failed("choice %d did not finish", i)
		}
	}
	if !done {
		return failed("no [DONE]")
	}
	return h.check(want)
}

// asLMEvalGenerate compares the texts in the order of their index.
func (r *reply) asLMEvalGenerate(want []fakevllm.Answer) error {
	a, err := r.choices(len(want))
	if err != nil {
		return err
	}
	for i, c := range a.Choices {
		got := c.Text
		if c.Message.Content != nil {
			got = *c.Message.Content
		}
		if got != want[i].Text {
			return failed("text %d is %q, not %q", i, got, want[i].Text)
		}
	}
	return nil
}

// asLMEvalLoglikelihood reads, for each prompt, the logprobs of its tokens after the context, without
// the one token that was generated. args are the lengths of the contexts.
func (r *reply) asLMEvalLoglikelihood(args []string, want []fakevllm.Answer) error {
	a, err := r.choices(len(want))
	if err != nil {
		return err
	}
	if len(args) != len(want) {
		return fmt.Errorf("%w: %d contexts for %d prompts", errRecording, len(args), len(want))
	}
	for i, c := range a.Choices {
		context, err := strconv.Atoi(args[i])
		if err != nil {
			return fmt.Errorf("%w: %w", errRecording, err)
		}
		n := want[i].PromptTokens + len(want[i].Tokens)
		l := c.Logprobs
		if l == nil || len(l.TokenLogprobs) != n || len(l.TopLogprobs) != n || len(l.Tokens) != n || len(l.TextOffset) != n {
			return failed("logprobs of prompt %d are not those of %d tokens: %+v", i, n, l)
		}
		if l.TokenLogprobs[0] != nil || l.TopLogprobs[0] != nil {
			return failed("the first token of prompt %d has a logprob", i)
		}
		for at := context; at < n-1; at++ {
			top := l.TopLogprobs[at]
			if l.TokenLogprobs[at] == nil || len(top) == 0 {
				return failed("token %d of prompt %d has no logprob", at, i)
			}
		}
		if c.Text != want[i].Text {
			return failed("text %d is %q, not %q", i, c.Text, want[i].Text)
		}
	}
	return nil
}

// choices decodes a whole response and sorts its choices.
func (r *reply) choices(n int) (chunkJSON, error) {
	var a chunkJSON
	if err := json.Unmarshal(r.body(), &a); err != nil {
		return a, failed("%v", err)
	}
	slices.SortFunc(a.Choices, func(x, y choiceJSON) int { return x.Index - y.Index })
	for i, c := range a.Choices {
		if c.Index != i {
			return a, failed("no choice %d", i)
		}
	}
	if len(a.Choices) != n {
		return a, failed("%d choices for %d", len(a.Choices), n)
	}
	return a, nil
}
