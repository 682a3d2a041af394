package answer

import (
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

// Lane is one of the answers that a request generates side by side.
type Lane struct {
	Seq      model.Sequence
	sampling model.Sampling
	Index    int // of the choice
	Prompt   int // which prompt
	call     *call
	told     *told  // what the model is told to say, nil where it says its own
	head     []byte // everything of a chunk before its text
	Tokens   []int  // only when the response shows them
	offset   int    // characters of text so far, for text_offset
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
			if j.Chat && j.WantsCall() {
				c := newCall(j.loaded(ids), j.Request, i)
				ln.call = &c
			}
			if j.Told != nil && !j.WrongKV {
				ln.told = newTold(j.Told, ids)
			}
		}
	}
	for i := range all {
		// The sequence points at its lane's sampling, so the slice is final.
		all[i].Seq = model.NewSequence(j.loaded(j.Prompts[all[i].Prompt]), &all[i].sampling, keepText)
	}
	return all
}

// loaded is the prompt as the KV cache has it.
func (j *Reply) loaded(ids []int) []int {
	if !j.WrongKV {
		return ids
	}
	return append(slices.Clone(ids), model.EOS)
}

// Step makes a lane's next token.
func (ln *Lane) Step() (id int, text bool) {
	var ids []int
	switch {
	case ln.told != nil:
		ids = ln.told.ids
	case ln.call != nil:
		ids = ln.call.ids
	default:
		return ln.Seq.Step()
	}
	q := &ln.Seq
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

// FinishReason is the lane's reason as the response spells it.
func (ln *Lane) FinishReason(j *Reply) string {
	if ln.call != nil && ln.Seq.Finish == "stop" && j.ToolChoice == "required" {
		return "tool_calls"
	}
	return ln.Seq.Finish
}

func AppendReason(b []byte, reason any) []byte {
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
