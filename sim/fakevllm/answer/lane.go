// Package answer renders the answers of the routes that generate, whole and as streams. It
// knows an admitted request (Reply) and the tokens that were generated for it (Lane), and no
// engine.
package answer

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// Reply is an admitted request as far as its answer depends on it.
type Reply struct {
	*request.Request
	ID             string // chatcmpl-<base> or cmpl-<base>
	Base           string
	Created        int64
	ServedAs       string // as which the model is served
	TransferParams []byte // kv_transfer_params of the response, nil for null
	EchoOnly       bool
	limits         []int // max_tokens per prompt
	Cached         int   // prompt tokens that needed no computing
	Details        bool  // usage reports them
	WrongKV        bool  // what was loaded is of another prompt
	Scripted       *Turn // scripted answer of the model, nil for its own
	Model          Model
	Interval       int // tokens of an event, at least 1
}

// Lane is one of the answers that a request generates in parallel.
type Lane struct {
	Seq      model.Sequence
	sampling model.Sampling
	Index    int       // of the choice
	Prompt   int       // which prompt
	scripted *scripted // scripted answer of the model, nil for its own
	calling  bool      // scripted is the tool call that the request requires
	head     []byte    // everything of a chunk before its text
	parser   *parser   // nil for an answer that is not parsed
	began    bool      // an event was sent
	called   bool      // an event had a part of a tool call
	pending  []int     // tokens that no event has shown
	Tokens   []int     // only when the response shows them
	offset   int       // characters of text so far, for text_offset
}

// Fit checks the sampling parameters, which vLLM does after it knows the
// model, and applies the model's length to every prompt.
func (j *Reply) Fit(maxModelLen int) error {
	if err := j.Verify(); err != nil {
		return err
	}
	j.Truncate(maxModelLen)
	j.limits = make([]int, len(j.Prompts))
	for i, ids := range j.Prompts {
		n, echoOnly, err := j.Limit(len(ids), maxModelLen)
		if err != nil {
			return err
		}
		j.limits[i], j.EchoOnly = n, echoOnly
	}
	return nil
}

// Lanes sets up the answers: n for each prompt, numbered as vLLM does.
func (j *Reply) Lanes(keepText bool) []Lane {
	all := make([]Lane, 0, len(j.Prompts)*j.N)
	for p, ids := range j.Prompts {
		for i := range j.N {
			all = append(all, Lane{Index: p*j.N + i, Prompt: p})
			ln := &all[len(all)-1]
			ln.sampling = j.Sampling
			ln.sampling.MaxTokens, ln.sampling.Choice = j.limits[p], i
			ln.sampling.Split, ln.sampling.Restarts = j.Model.Split, j.Restarts()
			switch {
			case j.Chat && j.WantsCall():
				ln.scripted, ln.calling = newCall(j.loaded(ids), j.Request, i), true
			case j.Scripted != nil && !j.WrongKV:
				ln.scripted = newScripted(j.Scripted, ids, i)
			default:
				ln.sampling.Plan = j.plan(j.loaded(ids), i)
			}
		}
	}
	for i := range all {
		// The sequence points at its lane's sampling, so the slice is final.
		all[i].Seq = model.NewSequence(j.loaded(j.Prompts[all[i].Prompt]), &all[i].sampling, keepText)
	}
	return all
}

// loaded returns the prompt as the KV cache has it.
func (j *Reply) loaded(ids []int) []int {
	if !j.WrongKV {
		return ids
	}
	return append(slices.Clone(ids), model.EOS)
}

// Step generates the next token of a lane.
func (ln *Lane) Step() (id int, text bool) {
	if ln.scripted == nil {
		return ln.Seq.Step()
	}
	q, ids := &ln.Seq, ln.scripted.ids
	id = ids[q.N]
	q.N++
	switch {
	case q.N == len(ids):
		q.Finish = "stop"
	case q.N >= ln.sampling.MaxTokens:
		q.Finish = "length"
	}
	return id, false
}

// Reasoning returns the number of reasoning tokens in the usage.
func (ln *Lane) Reasoning() int {
	if ln.parser == nil {
		return 0
	}
	return ln.parser.reasoning
}

// FinishReason returns the finish reason of a lane as the response has it.
func (ln *Lane) FinishReason(j *Reply) string {
	if (ln.calling && j.ToolChoice == "required" || ln.called) && ln.Seq.Finish == "stop" {
		return "tool_calls"
	}
	return ln.Seq.Finish
}

// logprob returns a made-up but steady log probability of a token.
func logprob(id int) float64 {
	return -math.Round(float64(id%1000)+1) / 1000
}

// appendChatLogprobs renders the logprobs object of a chat.
func appendChatLogprobs(b []byte, ids []int, top int) []byte {
	b = jsontext.AppendList(append(b, `{"content":[`...), ids, func(b []byte, _, id int) []byte {
		word := model.AppendWord(nil, id)
		bytes := make([]int, len(word))
		for i, c := range word {
			bytes[i] = int(c)
		}
		entry := jsontext.Append(nil, `{"token":$,"logprob":$,"bytes":$`, string(word), logprob(id), bytes)
		b = append(append(b, entry...), `,"top_logprobs":[`...)
		if top != 0 {
			b = append(append(b, entry...), '}')
		}
		return append(b, "]}"...)
	})
	return append(b, "]}"...)
}

// appendTextLogprobs renders the logprobs object of /v1/completions for a run of tokens; the
// first nullFirst of them have none, as the first of a prompt.
func appendTextLogprobs(b []byte, ids []int, nullFirst, offset int) []byte {
	var offsets []int
	var probs, tokens, tops []byte
	for i, id := range ids {
		word := string(model.AppendWord(nil, id))
		offsets = append(offsets, offset)
		offset += utf8.RuneCountInString(word)
		if i > 0 {
			probs, tokens, tops = append(probs, ','), append(tokens, ','), append(tops, ',')
		}
		tokens = jsontext.AppendString(tokens, word)
		if i < nullFirst {
			probs, tops = append(probs, "null"...), append(tops, "null"...)
			continue
		}
		probs = jsontext.Append(probs, `$`, logprob(id))
		tops = jsontext.Append(tops, `{$:$}`, word, logprob(id))
	}
	return fmt.Appendf(b, `{"text_offset":%s,"token_logprobs":[%s],"tokens":[%s],"top_logprobs":[%s]}`, jsontext.AppendInts(nil, offsets), probs, tokens, tops)
}

// AppendTotals appends the usage of a whole answer, or of its last event.
func (j *Reply) AppendTotals(b []byte, lanes []Lane, full bool) []byte {
	prompt, completion, reasoning := 0, 0, 0
	for _, ids := range j.Prompts {
		prompt += len(ids)
	}
	for i := range lanes {
		completion += lanes[i].Seq.N
		reasoning += lanes[i].Reasoning()
	}
	return j.AppendUsage(b, prompt, completion, reasoning, true, full)
}

// AppendUsage renders a usage object. Only chats report what was put into the cache, and reasoning tokens. full is for
// whole answers, which have members that are null, too.
func (j *Reply) AppendUsage(b []byte, prompt, completion, reasoning int, final, full bool) []byte {
	b = jsontext.Append(b, `{"prompt_tokens":$,"total_tokens":$,"completion_tokens":$`, prompt, prompt+completion, completion)
	switch {
	case final && j.Details:
		b = jsontext.Append(b, `,"prompt_tokens_details":{"cached_tokens":$`, j.Cached)
		switch {
		case j.Chat:
			b = jsontext.Append(b, `,"created_cache_tokens":$`, j.createdTokens(prompt))
		case full:
			b = append(b, `,"created_cache_tokens":null`...)
		}
		if full {
			b = append(b, `,"multimodal_tokens":null`...)
		}
		b = append(b, '}')
	case full:
		b = append(b, `,"prompt_tokens_details":null`...)
	}
	switch {
	case j.API == request.Chat && j.Model.Reasoning != "":
		b = jsontext.Append(b, `,"completion_tokens_details":{"reasoning_tokens":$}`, reasoning)
	case full || j.Chat && !final:
		b = append(b, `,"completion_tokens_details":null`...)
	}
	return append(b, '}')
}
