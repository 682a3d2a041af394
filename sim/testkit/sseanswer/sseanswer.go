// Package sseanswer reads the stream of a completion or a chat as a client does, and compares it
// with what an engine would have answered.
package sseanswer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

// Answer is what a client has of a stream.
type Answer struct {
	Text, Reasoning, Finish string
	Calls                   []model.Call
	IDs                     []int // token ids of the answer
	Prompts                 int   // events with the token ids of the prompt
	Heads                   []string
	Roles, Done             int
	Usage                   Usage
	Error                   string // of an error event
	Continued               int    // comments of the proxy that the stream goes on
}

// Usage is the last usage of a stream.
type Usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// event is the data of an event.
type event struct {
	ID      string
	Created int64
	Error   json.RawMessage
	Usage   *Usage
	Prompt  []int `json:"prompt_token_ids"`
	Choices []choice
}

type choice struct {
	Text  string
	Delta struct {
		Role, Content, Reasoning string
		Calls                    []struct {
			Index    int
			Function model.Call
		} `json:"tool_calls"`
	}
	IDs    []int  `json:"token_ids"`
	Prompt []int  `json:"prompt_token_ids"`
	Finish string `json:"finish_reason"`
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
		if len(e.Error) > 0 {
			a.Error = string(e.Error)
			continue
		}
		if head := fmt.Sprint(e.ID, " ", e.Created); !slices.Contains(a.Heads, head) {
			a.Heads = append(a.Heads, head)
		}
		if e.Usage != nil {
			a.Usage = *e.Usage
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

func (a *Answer) add(c *choice) {
	a.Text += c.Text + c.Delta.Content
	a.Reasoning += c.Delta.Reasoning
	a.Finish += c.Finish
	a.IDs = append(a.IDs, c.IDs...)
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

// Differs returns how a stream is not one complete answer, the wanted one; nil if it is. ids reports
// that the client has asked for token ids.
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
	return errors.Join(errs...)
}
