package fakevllm

import (
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

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

// fit checks the sampling parameters, which vLLM does after it knows the
// model, and applies the model's length to every prompt.
func (j *reply) fit(maxModelLen int) error {
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
		j.limits[i], j.echoOnly = n, echoOnly
	}
	return nil
}

// lanes sets up the answers: n for each prompt, numbered as vLLM does.
func (j *reply) lanes(keepText bool) []lane {
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
func (j *reply) loaded(ids []int) []int {
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
func (ln *lane) finishReason(j *reply) string {
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
