// Package sseanswer reads a stream as a client does, and compares it with an engine's expected answer.
package sseanswer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

// Answer is the content of a stream, as a client reads it.
type Answer struct {
	Text, Reasoning, Finish string
	Calls                   []model.Call
	IDs                     []int    // token ids of the answer
	Logprobs                []string // the tokens of its logprobs
	Prompts                 int      // events with the token ids of the prompt
	Heads                   []string
	Roles, Done             int
	Usage                   Usage
	Error                   string // of an error event
	Continued               int    // comments in which the proxy reports that it continued the stream

	sequence int      // of the next event of /v1/responses
	items    []string // ids of its items, or indices of the blocks of /v1/messages
}

// Usage is the last usage of a stream.
type Usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Input      int `json:"input_tokens"` // of /v1/responses and /v1/messages; Read sets Prompt
	Output     int `json:"output_tokens"`
}

// event is the data of an event.
type event struct {
	ID      string
	Created int64
	Error   json.RawMessage
	Usage   *Usage
	Prompt  []int `json:"prompt_token_ids"`
	Choices []Choice
	named
}

// named is the data of an event of /v1/responses or /v1/messages.
type named struct {
	Type     string
	Sequence int `json:"sequence_number"`
	Delta    json.RawMessage
	Item     *struct{ ID, Type, Name string }
	ItemID   string `json:"item_id"`
	Index    int
	Message  json.RawMessage // a string in an error
	Response *struct {
		ID, Status string
		Created    int64 `json:"created_at"`
		Usage      *Usage
	}
	Block struct{ Type, Name string } `json:"content_block"`
}

// Choice is a choice in an event of /v1/completions or /v1/chat/completions.
type Choice struct {
	Text  string
	Delta struct {
		Role, Content, Reasoning string
		Calls                    []struct {
			Index    int
			Function model.Call
		} `json:"tool_calls"`
	}
	IDs      []int  `json:"token_ids"`
	Prompt   []int  `json:"prompt_token_ids"`
	Finish   string `json:"finish_reason"`
	Logprobs struct {
		Tokens  []string // of a completion
		Content Tokens   // of a chat
	}
}

// Tokens are tokens with logprobs.
type Tokens []struct{ Token string }

// Texts returns the texts of the tokens.
func (t Tokens) Texts() (list []string) {
	for _, one := range t {
		list = append(list, one.Token)
	}
	return list
}

// Read reads a whole stream.
func Read(body string) (Answer, error) {
	var a Answer
	for line := range strings.SplitSeq(body, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		switch {
		case line == ": continued":
			a.Continued++
			continue
		case !ok:
			continue
		case data == "[DONE]":
			a.Done++
			continue
		case a.Done > 0:
			return a, fmt.Errorf("an event after [DONE]: %s", data)
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return a, fmt.Errorf("%w in %q", err, data)
		}
		if len(e.Error) > 0 || e.Type == "error" || e.Type == "response.failed" {
			a.Error = data
			continue
		}
		if e.Type != "" {
			if err := a.addNamed(&e); err != nil {
				return a, fmt.Errorf("%w in %q", err, data)
			}
		}
		if head := fmt.Sprint(e.ID, " ", e.Created); !slices.Contains(a.Heads, head) && (e.Type == "" || e.ID != "") {
			a.Heads = append(a.Heads, head)
		}
		if e.Usage != nil {
			u := *e.Usage
			if u.Input > 0 || u.Output > 0 {
				prompt := max(u.Input, a.Usage.Prompt) // only the first usage of /v1/messages has it
				u = Usage{Prompt: prompt, Completion: u.Output, Total: prompt + u.Output}
			}
			a.Usage = u
		}
		if e.Prompt != nil {
			a.Prompts++
		}
		for i := range e.Choices {
			a.add(&e.Choices[i])
		}
	}
	return a, nil
}

// addNamed adds an event of /v1/responses or /v1/messages.
func (a *Answer) addNamed(e *event) error {
	if r := e.Response; r != nil {
		e.ID, e.Created, e.Usage = r.ID, r.Created, r.Usage
	}
	if e.Type == "message_start" {
		if err := json.Unmarshal(e.Message, &struct {
			ID    *string
			Usage **Usage
		}{&e.ID, &e.Usage}); err != nil {
			return err
		}
	}
	if strings.HasPrefix(e.Type, "response.") {
		if a.sequence++; e.Sequence != a.sequence-1 {
			return fmt.Errorf("event %d", a.sequence-1)
		}
	}
	item, call := e.ItemID, ""
	switch {
	case e.Item != nil:
		item = e.Item.ID
	case strings.HasPrefix(e.Type, "content_block"):
		item = strconv.Itoa(e.Index)
	}
	switch e.Type {
	case "response.output_item.added", "content_block_start":
		if e.Item != nil && e.Item.Type == "function_call" {
			call = e.Item.Name
		} else if e.Block.Type == "tool_use" {
			call = e.Block.Name
		}
		if call != "" {
			a.Calls = append(a.Calls, model.Call{Name: call})
		}
		a.items = append(a.items, item)
	case "response.completed", "response.incomplete", "message_stop":
		a.Done++
	}
	if n := len(a.items); item != "" && (n == 0 || item != a.items[n-1]) {
		return fmt.Errorf("not of the last item of %q", a.items)
	}
	return a.addDelta(e)
}

func (a *Answer) addDelta(e *event) error {
	var d struct {
		Text, Thinking string
		Partial        string `json:"partial_json"`
		Stop           string `json:"stop_reason"`
	}
	to := &d.Text
	switch e.Type {
	case "response.output_text.delta":
	case "response.reasoning_text.delta":
		to = &d.Thinking
	case "response.function_call_arguments.delta":
		to = &d.Partial
	case "response.completed", "response.incomplete":
		if e.Response == nil {
			return errors.New("no response")
		}
		if a.Finish = "stop"; e.Response.Status == "incomplete" {
			a.Finish = "length"
		} else if len(a.Calls) > 0 {
			a.Finish = "tool_calls"
		}
		return nil
	default:
		if len(e.Delta) == 0 {
			return nil
		}
		if err := json.Unmarshal(e.Delta, &d); err != nil {
			return err
		}
		to = nil
	}
	if to != nil {
		if err := json.Unmarshal(e.Delta, to); err != nil {
			return err
		}
	}
	a.Text, a.Reasoning = a.Text+d.Text, a.Reasoning+d.Thinking
	a.Finish += map[string]string{"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}[d.Stop]
	if d.Partial != "" {
		a.Calls[len(a.Calls)-1].Arguments += d.Partial
	}
	return nil
}

func (a *Answer) add(c *Choice) {
	a.Text += c.Text + c.Delta.Content
	a.Reasoning += c.Delta.Reasoning
	a.Finish += c.Finish
	a.IDs = append(a.IDs, c.IDs...)
	a.Logprobs = slices.Concat(a.Logprobs, c.Logprobs.Tokens, c.Logprobs.Content.Texts())
	if c.Prompt != nil {
		a.Prompts++
	}
	if c.Delta.Role != "" {
		a.Roles++
	}
	for _, call := range c.Delta.Calls {
		for len(a.Calls) <= call.Index {
			a.Calls = append(a.Calls, model.Call{})
		}
		a.Calls[call.Index].Name += call.Function.Name
		a.Calls[call.Index].Arguments += call.Function.Arguments
	}
}

// Differs returns an error with every difference from the wanted answer; nil if the stream is exactly
// that. ids reports whether the client requested token ids. If there are logprobs, each token must have them.
func (a *Answer) Differs(want *fakevllm.Answer, ids bool) error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(a.Error == "", "error event %s", a.Error)
	check(a.Text == want.Text, "text %q, want %q", a.Text, want.Text)
	check(a.Reasoning == want.Reasoning, "reasoning %q, want %q", a.Reasoning, want.Reasoning)
	check(slices.Equal(a.Calls, want.Calls), "calls %v, want %v", a.Calls, want.Calls)
	check(a.Finish == want.FinishReason, "finish reason %q, want %q", a.Finish, want.FinishReason)
	check(a.Done == 1 && len(a.Heads) == 1 && a.Roles <= 1, "%d [DONE], %d roles, ids %v", a.Done, a.Roles, a.Heads)
	check(a.Usage.Total == a.Usage.Prompt+a.Usage.Completion && a.Usage.Prompt == want.PromptTokens && a.Usage.Completion == len(want.Tokens),
		"usage %+v, want %d and %d tokens", a.Usage, want.PromptTokens, len(want.Tokens))
	if ids {
		check(slices.Equal(a.IDs, want.Tokens) && a.Prompts == 1, "token ids %v, want %v; %d times those of the prompt", a.IDs, want.Tokens, a.Prompts)
	} else {
		check(len(a.IDs) == 0 && a.Prompts == 0, "unexpected token ids: %v", a.IDs)
	}
	if len(a.Logprobs) > 0 {
		var tokens []string
		for _, id := range want.Tokens {
			tokens = append(tokens, strings.ToValidUTF8(string(model.AppendWord(nil, id)), "\uFFFD"))
		}
		check(slices.Equal(a.Logprobs, tokens), "logprobs of %q, want %q", a.Logprobs, tokens)
	}
	return errors.Join(errs...)
}
