// Package pieces reads streams event by event, so that tests can continue them at any event.
package pieces

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/pdmesh/pdmesh/sim/testkit/sseanswer"
)

// Piece is what one event of a stream has.
type Piece struct {
	Text, Reasoning string
	Calls           map[int]string // names and arguments by index
	IDs             []int
	Finish          string
	Usage           sseanswer.Usage
	Logged          []string // tokens with logprobs
}

// Answer is a stream as a client has it, or a part of one.
type Answer struct {
	Text, Reasoning string
	Calls           []string
	IDs             []int
	Finish          string
	Usage           sseanswer.Usage
	Logged          []string
}

// Join returns what a client has of some pieces.
func Join(list []Piece) (v Answer) {
	calls := map[int]string{}
	for _, p := range list {
		v.Text, v.Reasoning, v.IDs, v.Finish = v.Text+p.Text, v.Reasoning+p.Reasoning, append(v.IDs, p.IDs...), v.Finish+p.Finish
		v.Logged = append(v.Logged, p.Logged...)
		for index, text := range p.Calls {
			calls[index] += text
		}
		if p.Usage != (sseanswer.Usage{}) {
			v.Usage = p.Usage
		}
	}
	for _, index := range slices.Sorted(maps.Keys(calls)) {
		v.Calls = append(v.Calls, calls[index])
	}
	return v
}

// Read reads the data of an event, and the ids of the prompt in it; p is nil for an event without content.
func Read(data string) (prompt []int, p *Piece, err error) {
	var e struct {
		Type, Delta    string           // of /v1/responses
		Logprobs       sseanswer.Tokens // of /v1/responses
		PromptTokenIDs []int            `json:"prompt_token_ids"`
		Error          json.RawMessage  `json:"error"`
		Usage          sseanswer.Usage  `json:"usage"`
		Choices        []sseanswer.Choice
	}
	if err := json.Unmarshal([]byte(data), &e); err != nil || e.Error != nil {
		return nil, nil, fmt.Errorf("error %s: %w", e.Error, err)
	}
	switch e.Type {
	case "":
	case "response.output_text.delta":
		// vLLM leaves out those of tokens without text, unless they are in one event with others.
		logged := slices.DeleteFunc(e.Logprobs.Texts(), func(token string) bool { return token == "" })
		return nil, &Piece{Text: e.Delta, Logged: logged}, nil
	case "response.completed":
		return nil, &Piece{Finish: "completed"}, nil
	default:
		return nil, nil, nil
	}
	if len(e.Choices) != 1 {
		return nil, &Piece{Usage: e.Usage}, nil
	}
	c := e.Choices[0]
	prompt = append(e.PromptTokenIDs, c.Prompt...)
	if c.Delta.Role != "" {
		return prompt, nil, nil
	}
	p = &Piece{Text: c.Text + c.Delta.Content, Reasoning: c.Delta.Reasoning, IDs: c.IDs, Finish: c.Finish, Calls: map[int]string{}, Logged: append(c.Logprobs.Content.Texts(), c.Logprobs.Tokens...)}
	for _, call := range c.Delta.Calls {
		p.Calls[call.Index] += call.Function.Name + call.Function.Arguments
	}
	return prompt, p, nil
}
