package fakevllm

import (
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

// lane is one of the answers that a request generates side by side.
type lane struct {
	seq      model.Sequence
	sampling model.Sampling
	index    int // of the choice
	prompt   int // which prompt
	call     *call
	told     *told  // what the model is told to say, nil where it says its own
	head     []byte // everything of a chunk before its text
	tokens   []int  // only when the response shows them
	offset   int    // characters of text so far, for text_offset
}

// lanes sets up the answers: n for each prompt, numbered as vLLM does.
func (j *job) lanes(keepText bool) []lane {
	all := make([]lane, 0, len(j.Prompts)*j.N)
	for p, ids := range j.Prompts {
		for i := range j.N {
			all = append(all, lane{index: p*j.N + i, prompt: p})
			ln := &all[len(all)-1]
			ln.sampling = j.Sampling
			ln.sampling.MaxTokens, ln.sampling.Choice = j.limits[p], i
			if j.Chat && j.WantsCall() {
				c := newCall(j.loaded(ids), j.Request, i)
				ln.call = &c
			}
			if j.turn != nil && !j.wrongKV {
				ln.told = newTold(j.turn, ids)
			}
		}
	}
	for i := range all {
		// The sequence points at its lane's sampling, so the slice is final.
		all[i].seq = model.NewSequence(j.loaded(j.Prompts[all[i].prompt]), &all[i].sampling, keepText)
	}
	return all
}

// loaded is the prompt as the KV cache has it.
func (j *job) loaded(ids []int) []int {
	if !j.wrongKV {
		return ids
	}
	return append(slices.Clone(ids), model.EOS)
}

// step makes a lane's next token.
func (ln *lane) step() (id int, text bool) {
	var ids []int
	switch {
	case ln.told != nil:
		ids = ln.told.ids
	case ln.call != nil:
		ids = ln.call.ids
	default:
		return ln.seq.Step()
	}
	q := &ln.seq
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

// finishReason is the lane's reason as the response spells it.
func (ln *lane) finishReason(j *job) string {
	if ln.call != nil && ln.seq.Finish == "stop" && j.ToolChoice == "required" {
		return "tool_calls"
	}
	return ln.seq.Finish
}

func appendReason(b []byte, reason any) []byte {
	switch r := reason.(type) {
	case int:
		return strconv.AppendInt(b, int64(r), 10)
	case string:
		return jsontext.AppendString(b, r)
	}
	return append(b, "null"...)
}

// logprob is a made-up but steady log probability of a token.
func logprob(id int) float64 {
	return -math.Round(float64(id%1000)+1) / 1000
}

func appendLogprob(b []byte, id int) []byte {
	return strconv.AppendFloat(b, logprob(id), 'f', -1, 64)
}

// appendChatLogprob renders one entry of logprobs.content.
func appendChatLogprob(b []byte, id, top int) []byte {
	entry := func() {
		word := model.AppendWord(nil, id)
		b = append(b, `{"token":"`...)
		b = jsontext.AppendText(b, word)
		b = append(b, `","logprob":`...)
		b = appendLogprob(b, id)
		b = append(b, `,"bytes":[`...)
		for i, c := range word {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(c), 10)
		}
		b = append(b, ']')
	}
	entry()
	b = append(b, `,"top_logprobs":[`...)
	if top != 0 {
		entry()
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// appendTextLogprobs renders the logprobs object of /v1/completions for a run
// of tokens; the first nullFirst of them have none, as the first of a prompt.
func appendTextLogprobs(b []byte, ids []int, nullFirst, offset int) []byte {
	list := func(name string, item func(i, id int)) {
		b = append(b, `"`+name+`":[`...)
		for i, id := range ids {
			if i > 0 {
				b = append(b, ',')
			}
			item(i, id)
		}
		b = append(b, ']')
	}
	b = append(b, '{')
	list("text_offset", func(_, id int) {
		b = strconv.AppendInt(b, int64(offset), 10)
		offset += utf8.RuneCount(model.AppendWord(nil, id))
	})
	b = append(b, ',')
	list("token_logprobs", func(i, id int) {
		if i < nullFirst {
			b = append(b, "null"...)
			return
		}
		b = appendLogprob(b, id)
	})
	b = append(b, ',')
	list("tokens", func(_, id int) { b = append(model.AppendWordJSON(append(b, '"'), id), '"') })
	b = append(b, ',')
	list("top_logprobs", func(i, id int) {
		if i < nullFirst {
			b = append(b, "null"...)
			return
		}
		b = append(model.AppendWordJSON(append(b, '{', '"'), id), '"', ':')
		b = append(appendLogprob(b, id), '}')
	})
	return append(b, '}')
}

// cacheBlock is how many tokens a block holds by default.
const cacheBlock = 16

// appendUsage renders a usage object; details are those of options. Chats tell
// what was put into the cache, other completions do not. full is for whole
// answers, which have members that are null, too.
func (x *exchange) appendUsage(b []byte, j *job, prompt, completion int, final, full bool) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt+completion), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(completion), 10)
	switch {
	case final && x.life.server.opt.PromptTokensDetails:
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(j.cached), 10)
		switch {
		case j.Chat:
			b = append(b, `,"created_cache_tokens":`...)
			b = strconv.AppendInt(b, int64(j.createdTokens(prompt)), 10)
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
	if full || j.Chat && !final {
		b = append(b, `,"completion_tokens_details":null`...)
	}
	return append(b, '}')
}

// pace is the engine's clock for one request: the first token after TTFT, the
// others ITL apart, on a fixed schedule so that delays don't add up.
type pace struct {
	next time.Time
	itl  time.Duration
	last time.Time
}

// first waits for the first token.
func (x *exchange) first(j *job) (pace, bool) {
	o := &x.life.server.opt
	ttft, itl := o.TTFT, o.ITL
	if f := x.fault; f != nil && f.Kind == fault.Slow {
		ttft += f.TTFT
		itl += f.ITL
	}
	if j.fetching != nil && !x.awaitFetch(j) {
		return pace{}, false
	}
	began := time.Now()
	ok := x.compute(j) && x.wait(ttft)
	now := time.Now()
	if ok {
		x.prefilled(j)
		x.core.stats.Prefill.Observe(now.Sub(began))
		x.core.stats.TTFT.Observe(now.Sub(j.arrived))
	}
	return pace{next: now.Add(itl + x.core.drag(x.core.running.Load())), itl: itl, last: now}, ok
}

// tick waits for the following token.
func (x *exchange) tick(p *pace) bool {
	if p.itl <= 0 {
		return x.alive()
	}
	ok := x.wait(time.Until(p.next))
	p.next = p.next.Add(p.itl + x.core.drag(x.core.running.Load()))
	now := time.Now()
	x.core.stats.ITL.Observe(now.Sub(p.last))
	p.last = now
	return ok
}

// counted adds generated tokens to the engine's counters.
func (l *life) generated(c *core, n int) {
	l.count.generationTokens.Add(int64(n))
	c.stats.GenerationTokens.Add(int64(n))
}
