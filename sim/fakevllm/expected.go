package fakevllm

import (
	"fmt"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// Sampling has the parameters of a request to the simulated model.
type Sampling = model.Sampling

// Answer is the output of the simulated model.
type Answer = model.Answer

// ExpectedCompletion returns the answer of /v1/completions to a prompt of token
// ids, without a request. It takes a few nanoseconds per token.
func ExpectedCompletion(prompt []int, s Sampling) Answer { return model.Generate(prompt, s) }

// ExpectedText is ExpectedCompletion for a prompt of text.
func ExpectedText(prompt string, s Sampling) Answer {
	return model.Generate(model.Tokenize(prompt), s)
}

// Message is a chat message with plain text.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ExpectedChat returns the answer of /v1/chat/completions to messages without
// tools. To continue a partial answer, see ChatPrompt.
func ExpectedChat(messages []Message, s Sampling) Answer {
	return model.Generate(ChatPrompt(messages, false), s)
}

// ChatPrompt returns the prompt that the simulated chat template builds from
// messages: with the opening of the assistant's answer, or without it to
// continue the last message (continue_final_message).
func ChatPrompt(messages []Message, continueLast bool) []int {
	p := request.Request{AddGenerate: !continueLast, ContinueMsg: continueLast}
	for _, m := range messages {
		p.Messages = append(p.Messages, request.Message{Role: m.Role, Text: m.Content})
	}
	// Render fails only if both fields are true, or without messages.
	_ = p.Render()
	return p.Prompts[0]
}

// ExpectedAt is Expected for an engine with the given context length; 0 means the default.
func ExpectedAt(path string, body []byte, maxModelLen int) ([]Answer, error) {
	return Options{MaxModelLen: maxModelLen}.Expected(path, body)
}

// Expected returns the answers of an engine with these options to any request body, one per choice.
// The error is the one that the engine would return with status 4xx. With parsers, an answer has
// reasoning and calls in addition to its text.
func (o Options) Expected(path string, body []byte) ([]Answer, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	a, ok := request.APIOf(path)
	if !ok {
		return nil, fmt.Errorf("%s generates nothing", path)
	}
	p, err := a.Parse(body)
	if err != nil {
		return nil, fmt.Errorf("the engine refuses it: %w", err)
	}
	j := &answer.Reply{Request: p, Model: o.model()}
	if err := o.render(p); err != nil {
		return nil, fmt.Errorf("the engine refuses it: %w", err)
	}
	if err := j.Fit(o.MaxModelLen); err != nil {
		return nil, fmt.Errorf("the engine refuses it: %w", err)
	}
	lanes := j.Lanes(true)
	answers := make([]Answer, len(lanes))
	for i := range lanes {
		ln := &lanes[i]
		a := &answers[i]
		a.PromptTokens = len(j.Prompts[ln.Prompt])
		for ln.Seq.Finish == "" {
			id, _ := ln.Step()
			a.Tokens = append(a.Tokens, id)
		}
		a.Text = string(ln.Seq.Text)
		j.Parse(ln, a)
		a.FinishReason, a.StopReason = ln.FinishReason(j), ln.Seq.Reason
		switch {
		case ln.Calling():
			a.ToolName, a.ToolArguments = ln.ToolCall()
		case j.Echo && !p.Chat:
			a.Text = j.Text(ln.Prompt) + a.Text
			if j.EchoOnly {
				a.Text = j.Text(ln.Prompt)
			}
		case j.Echo:
			a.Text = j.EchoText() + a.Text
		}
	}
	return answers, nil
}
