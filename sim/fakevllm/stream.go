package fakevllm

import (
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// What ends the event of a token when there is nothing special about it.
const chatTail = `"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"
const textTail = `","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}` + "\n\n"

// stream answers with events: 200 at once, as vLLM does, before anything is
// computed; then one event per token.
func (x *exchange) stream(j *job) {
	x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	x.w.WriteHeader(http.StatusOK)
	x.streaming = true
	x.flush()
	if x.strike(fault.AfterHeaders, 0) {
		return
	}
	if j.API == request.Responses || j.API == request.Messages {
		x.agentStream(j)
		return
	}
	if j.API == request.Generate {
		x.streamIDs(j)
		return
	}
	p, ok := x.first(j)
	if !ok {
		x.gone()
		return
	}
	head := j.chunkHead()
	buf := make([]byte, 0, 1024)
	if j.Chat {
		for i := range j.N {
			buf = x.appendRole(buf[:0], j, head, i)
			if !x.write(buf) {
				x.gone()
				return
			}
		}
	}
	if x.strike(fault.AfterRole, 0) {
		return
	}
	if j.loadErr != nil {
		// vLLM finds the failed load out with the first result: behind the
		// role chunk, inside the 200.
		x.core.stats.Fail.Add(1)
		x.fail(pydantic.InternalError())
		return
	}
	lanes := j.lanes(false)
	for i := range lanes {
		ln := &lanes[i]
		ln.head = strconv.AppendInt(append(make([]byte, 0, len(head)+32), head...), int64(ln.index), 10)
		switch {
		case ln.call != nil:
			ln.head = append(ln.head, `,"delta":{`...)
		case j.Chat:
			ln.head = append(ln.head, `,"delta":{"content":"`...)
		default:
			ln.head = append(ln.head, `,"text":"`...)
		}
	}
	if !x.streamTokens(j, lanes, &p, buf) {
		return
	}
	x.offer(j, lanes[0].seq.Finish)
	x.endStream(j, lanes, head, buf)
}

// streamTokens is the loop that benchmarks live in: no allocation per token.
func (x *exchange) streamTokens(j *job, lanes []lane, p *pace, buf []byte) (ok bool) {
	simple := j.Logprobs == nil && !j.ReturnTokenIDs && !j.ContinuousUsage && !j.Echo
	open := len(lanes)
	for round := 1; open > 0; round++ {
		if round > 1 && !x.tick(p) {
			x.gone()
			return false
		}
		for i := range lanes {
			ln := &lanes[i]
			if ln.seq.Finish != "" {
				continue
			}
			id, text := ln.step()
			x.generated(ln, id)
			buf = append(buf[:0], ln.head...)
			switch {
			case ln.call != nil:
				buf = ln.call.appendDelta(buf, ln.seq.N)
			case ln.seq.Keep:
				if round == 1 && j.Echo {
					buf = jsontext.AppendText(buf, j.Text(ln.prompt))
				}
				buf = jsontext.AppendText(buf, ln.seq.Delta())
			default:
				if round == 1 && j.Echo {
					buf = jsontext.AppendText(buf, j.Text(ln.prompt))
				}
				if text && !j.echoOnly {
					buf = model.AppendWordJSON(buf, id)
				}
			}
			switch {
			case simple && ln.seq.Finish == "" && ln.call == nil && j.Chat:
				buf = append(buf, chatTail...)
			case simple && ln.seq.Finish == "" && ln.call == nil:
				buf = append(buf, textTail...)
			default:
				buf = x.appendTail(buf, j, ln, id, round == 1)
			}
			if ln.seq.Finish != "" {
				open--
				x.core.finished(ln.seq.Finish)
			}
			if !x.write(buf) {
				x.gone()
				return false
			}
		}
		if x.strike(fault.AfterTokens, round) {
			return false
		}
	}
	return true
}

func (x *exchange) endStream(j *job, lanes []lane, head, buf []byte) {
	buf = buf[:0]
	if j.IncludeUsage {
		prompt, completion := 0, 0
		for _, ids := range j.Prompts {
			prompt += len(ids)
		}
		for i := range lanes {
			completion += lanes[i].seq.N
		}
		// head ends in the beginning of a choice; this event has none.
		buf = append(buf, head[:len(head)-len(`{"index":`)]...)
		buf = append(buf, `],"usage":`...)
		buf = x.appendUsage(buf, j, prompt, completion, true, false)
		buf = append(buf, "}\n\n"...)
		if !x.write(buf) {
			x.gone()
			return
		}
	}
	if !x.write([]byte("data: [DONE]\n\n")) {
		x.gone()
		return
	}
	x.completed()
}

// chunkHead is what all events of a request begin with, up to the index.
func (j *job) chunkHead() []byte {
	b := append(make([]byte, 0, 256), `data: {"id":`...)
	b = jsontext.AppendString(b, j.id)
	if j.Chat {
		b = append(b, `,"object":"chat.completion.chunk","created":`...)
	} else {
		b = append(b, `,"object":"text_completion","created":`...)
	}
	b = strconv.AppendInt(b, j.created, 10)
	b = append(b, `,"model":`...)
	b = jsontext.AppendString(b, j.model)
	return append(b, `,"choices":[{"index":`...)
}

func (x *exchange) appendRole(b []byte, j *job, head []byte, index int) []byte {
	b = strconv.AppendInt(append(b, head...), int64(index), 10)
	b = append(b, `,"delta":{"role":`...)
	b = jsontext.AppendString(b, j.role())
	b = append(b, `,"content":""},"logprobs":null,"finish_reason":null}]`...)
	if j.ContinuousUsage {
		b = x.appendUsage(append(b, `,"usage":`...), j, len(j.Prompts[0]), 0, false, false)
	}
	b = append(b, `,"prompt_token_ids":`...)
	if j.ReturnTokenIDs {
		b = jsontext.AppendInts(b, j.Prompts[0])
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"prompt_text":null}`+"\n\n"...)
	if text := j.echoText(); text != "" {
		b = strconv.AppendInt(append(b, head...), int64(index), 10)
		b = append(b, `,"delta":{"content":`...)
		b = jsontext.AppendString(b, text)
		b = append(b, `},"logprobs":null,"finish_reason":null}]`...)
		if j.ContinuousUsage {
			b = x.appendUsage(append(b, `,"usage":`...), j, len(j.Prompts[0]), 0, false, false)
		}
		b = append(b, "}\n\n"...)
	}
	return b
}

// role is whose message the answer is.
func (j *job) role() string {
	if j.AddGenerate {
		return "assistant"
	}
	return j.Messages[len(j.Messages)-1].Role
}

// echoText is what echo puts before a chat answer: the last message if it is
// of the answer's role.
func (j *job) echoText() string {
	if last := j.Messages[len(j.Messages)-1]; j.Echo && last.Role == j.role() {
		return last.Text
	}
	return ""
}

// appendTail closes the text and renders the rest of an event in full.
func (x *exchange) appendTail(b []byte, j *job, ln *lane, id int, first bool) []byte {
	if ln.call != nil {
		b = append(b, `},"logprobs":`...)
	} else if j.Chat {
		b = append(b, `"},"logprobs":`...)
	} else {
		b = append(b, `","logprobs":`...)
	}
	switch {
	case j.Logprobs == nil || ln.call != nil:
		b = append(b, "null"...)
	case j.Chat:
		b = append(b, `{"content":[`...)
		b = append(appendChatLogprob(b, id, *j.Logprobs), "]}"...)
	case first && j.Echo:
		ids := append(append([]int(nil), j.Prompts[ln.prompt]...), id)
		b = appendTextLogprobs(b, ids, 1, 0)
	default:
		b = appendTextLogprobs(b, []int{id}, 0, ln.offset)
	}
	if first && j.Echo {
		ln.offset += utf8.RuneCountInString(j.Text(ln.prompt))
	}
	ln.offset += utf8.RuneCount(model.AppendWord(nil, id))
	b = append(b, `,"finish_reason":`...)
	if ln.seq.Finish == "" {
		b = append(b, "null"...)
	} else {
		b = jsontext.AppendString(b, ln.finishReason(j))
	}
	if ln.seq.Finish != "" || !j.Chat {
		b = appendReason(append(b, `,"stop_reason":`...), ln.seq.Reason)
	}
	if !j.Chat {
		b = append(b, `,"prompt_token_ids":`...)
		if first && j.ReturnTokenIDs {
			b = jsontext.AppendInts(b, j.Prompts[ln.prompt])
		} else {
			b = append(b, "null"...)
		}
	}
	b = append(b, `,"token_ids":`...)
	if j.ReturnTokenIDs {
		b = append(strconv.AppendInt(append(b, '['), int64(id), 10), ']')
	} else {
		b = append(b, "null"...)
	}
	b = append(b, "}]"...)
	if j.ContinuousUsage {
		b = x.appendUsage(append(b, `,"usage":`...), j, len(j.Prompts[ln.prompt]), ln.seq.N, false, false)
	}
	if ln.seq.Finish != "" && ln.index == 0 && x.life.server.opt.Bidirectional {
		if x.handOver(j, ln.seq.Finish); j.kvJSON != nil {
			b = append(append(b, `,"kv_transfer_params":`...), j.kvJSON...)
		}
	}
	return append(b, "}\n\n"...)
}

// appendDelta is the inside of "delta" for the nth token of a tool call.
func (c *call) appendDelta(b []byte, n int) []byte {
	switch {
	case n == 1:
		b = append(b, `"tool_calls":[{"id":`...)
		b = jsontext.AppendString(b, c.id)
		b = append(b, `,"type":"function","index":0,"function":{"name":`...)
		b = jsontext.AppendString(b, c.name)
		return append(b, `,"arguments":""}}]`...)
	case n-2 < len(c.parts):
		b = append(b, `"tool_calls":[{"index":0,"function":{"arguments":`...)
		b = jsontext.AppendString(b, c.parts[n-2])
		return append(b, "}}]"...)
	}
	return b // EOS: an empty delta
}
