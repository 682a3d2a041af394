package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// chat streams one answer through a proxy, calls show with each piece of its
// text, and compares it with the expected answer.
func (t *tour) chat(ctx context.Context, proxy *fleet.Proxy, question string, tokens int, show func([]byte)) (loadgen.Result, error) {
	body, err := json.Marshal(map[string]any{
		"model": model, "max_tokens": tokens, "ignore_eos": true,
		"stream": true, "stream_options": map[string]any{"include_usage": true},
		"messages": []map[string]string{{"role": "user", "content": question}},
	})
	if err != nil {
		return loadgen.Result{}, fmt.Errorf("build the request: %w", err)
	}
	answer := fakevllm.ExpectedChat([]fakevllm.Message{{Role: "user", Content: question}}, fakevllm.Sampling{MaxTokens: tokens, IgnoreEOS: true})
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	r := t.client.Stream(ctx, proxy.URL()+"/v1/chat/completions", nil, body, loadgen.Expected{
		Text: []byte(answer.Text), PromptTokens: answer.PromptTokens,
		CompletionTokens: len(answer.Tokens), FinishReason: answer.FinishReason,
	}, loadgen.Observer{Text: show})
	if r.Err != nil {
		return r, fmt.Errorf("unexpected answer: %w; last log lines of %s:\n%s", r.Err, proxy.Name(), indent(proxy.LogTail(15)))
	}
	for _, role := range instance.Roles() {
		if t.name(role, r) == unknown {
			return r, fmt.Errorf("the response headers do not name the %s instance: %v", role, r.Header)
		}
	}
	return r, nil
}

const unknown = "unknown"

// name returns the name of the node that served an answer in the given role.
func (t *tour) name(role instance.Role, r loadgen.Result) string {
	header := "X-PD-Decode"
	if role == instance.Prefill {
		header = "X-PD-Prefill"
	}
	for _, n := range t.nodes {
		if n.Spec.Role == role && n.Address == r.Header.Get(header) {
			return n.Spec.Name
		}
	}
	return unknown
}

// printer prints an answer while it arrives, wrapped into lines.
type printer struct {
	w      io.Writer
	indent string
	column int
}

const width = 76

// Write prints a piece of text. Every token begins with a space, so lines are
// wrapped before a piece; line breaks within a piece are printed escaped.
func (p *printer) Write(piece []byte) {
	if p.column > 0 && p.column+len(piece) > width {
		fmt.Fprint(p.w, "\n")
		p.column = 0
	}
	if p.column == 0 {
		piece = bytes.TrimLeft(piece, " ")
		fmt.Fprint(p.w, p.indent)
		p.column = len(p.indent)
		p.indent = strings.Repeat(" ", len(p.indent))
	}
	text := instance.Printable(string(piece), 0)
	fmt.Fprint(p.w, text)
	p.column += len(text)
}

func (p *printer) end() {
	if p.column > 0 {
		fmt.Fprint(p.w, "\n")
	}
	fmt.Fprint(p.w, "\n")
}

func indent(s string) string {
	return "   " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n   ")
}
