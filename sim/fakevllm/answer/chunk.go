package answer

import (
	"strconv"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

// What ends the event of a token when there is nothing special about it.
const chatTail = `"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"
const textTail = `","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}` + "\n\n"

// ChunkHead is what all events of a request begin with, up to the index.
func (j *Reply) ChunkHead() []byte {
	b := append(make([]byte, 0, 256), `data: {"id":`...)
	b = jsontext.AppendString(b, j.ID)
	if j.Chat {
		b = append(b, `,"object":"chat.completion.chunk","created":`...)
	} else {
		b = append(b, `,"object":"text_completion","created":`...)
	}
	b = strconv.AppendInt(b, j.Created, 10)
	b = append(b, `,"model":`...)
	b = jsontext.AppendString(b, j.ServedAs)
	return append(b, `,"choices":[{"index":`...)
}

func (j *Reply) AppendRole(b []byte, head []byte, index int) []byte {
	b = strconv.AppendInt(append(b, head...), int64(index), 10)
	b = append(b, `,"delta":{"role":`...)
	b = jsontext.AppendString(b, j.role())
	b = append(b, `,"content":""},"logprobs":null,"finish_reason":null}]`...)
	if j.ContinuousUsage {
		b = j.AppendUsage(append(b, `,"usage":`...), len(j.Prompts[0]), 0, false, false)
	}
	b = append(b, `,"prompt_token_ids":`...)
	if j.ReturnTokenIDs {
		b = jsontext.AppendInts(b, j.Prompts[0])
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"prompt_text":null}`+"\n\n"...)
	if text := j.EchoText(); text != "" {
		b = strconv.AppendInt(append(b, head...), int64(index), 10)
		b = append(b, `,"delta":{"content":`...)
		b = jsontext.AppendString(b, text)
		b = append(b, `},"logprobs":null,"finish_reason":null}]`...)
		if j.ContinuousUsage {
			b = j.AppendUsage(append(b, `,"usage":`...), len(j.Prompts[0]), 0, false, false)
		}
		b = append(b, "}\n\n"...)
	}
	return b
}

// role is whose message the answer is.
func (j *Reply) role() string {
	if j.AddGenerate {
		return "assistant"
	}
	return j.Messages[len(j.Messages)-1].Role
}

// EchoText is what echo puts before a chat answer: the last message if it is
// of the answer's role.
func (j *Reply) EchoText() string {
	if last := j.Messages[len(j.Messages)-1]; j.Echo && last.Role == j.role() {
		return last.Text
	}
	return ""
}

// Begin sets up what all events of a lane have before its text.
func (ln *Lane) Begin(j *Reply, head []byte) {
	ln.head = strconv.AppendInt(append(make([]byte, 0, len(head)+32), head...), int64(ln.Index), 10)
	switch {
	case ln.call != nil:
		ln.head = append(ln.head, `,"delta":{`...)
	case j.Chat:
		ln.head = append(ln.head, `,"delta":{"content":"`...)
	default:
		ln.head = append(ln.head, `,"text":"`...)
	}
}

// AppendEvent renders the event of a token. Benchmarks live in it: it does not allocate.
func (j *Reply) AppendEvent(buf []byte, ln *Lane, id int, text, first bool) []byte {
	simple := j.Logprobs == nil && !j.ReturnTokenIDs && !j.ContinuousUsage && !j.Echo
	buf = append(buf, ln.head...)
	switch {
	case ln.call != nil:
		buf = ln.call.appendDelta(buf, ln.Seq.N)
	case ln.Seq.Keep:
		if first && j.Echo {
			buf = jsontext.AppendText(buf, j.Text(ln.Prompt))
		}
		buf = jsontext.AppendText(buf, ln.Seq.Delta())
	default:
		if first && j.Echo {
			buf = jsontext.AppendText(buf, j.Text(ln.Prompt))
		}
		if text && !j.EchoOnly {
			buf = model.AppendWordJSON(buf, id)
		}
	}
	switch {
	case simple && ln.Seq.Finish == "" && ln.call == nil && j.Chat:
		buf = append(buf, chatTail...)
	case simple && ln.Seq.Finish == "" && ln.call == nil:
		buf = append(buf, textTail...)
	default:
		buf = j.appendTail(buf, ln, id, first)
	}
	return buf
}

// appendTail closes the text and renders the rest of an event in full.
func (j *Reply) appendTail(b []byte, ln *Lane, id int, first bool) []byte {
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
		ids := append(append([]int(nil), j.Prompts[ln.Prompt]...), id)
		b = appendTextLogprobs(b, ids, 1, 0)
	default:
		b = appendTextLogprobs(b, []int{id}, 0, ln.offset)
	}
	if first && j.Echo {
		ln.offset += utf8.RuneCountInString(j.Text(ln.Prompt))
	}
	ln.offset += utf8.RuneCount(model.AppendWord(nil, id))
	b = append(b, `,"finish_reason":`...)
	if ln.Seq.Finish == "" {
		b = append(b, "null"...)
	} else {
		b = jsontext.AppendString(b, ln.FinishReason(j))
	}
	if ln.Seq.Finish != "" || !j.Chat {
		b = AppendReason(append(b, `,"stop_reason":`...), ln.Seq.Reason)
	}
	if !j.Chat {
		b = append(b, `,"prompt_token_ids":`...)
		if first && j.ReturnTokenIDs {
			b = jsontext.AppendInts(b, j.Prompts[ln.Prompt])
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
		b = j.AppendUsage(append(b, `,"usage":`...), len(j.Prompts[ln.Prompt]), ln.Seq.N, false, false)
	}
	if ln.Seq.Finish != "" && ln.Index == 0 && j.HandedOver != nil {
		b = append(append(b, `,"kv_transfer_params":`...), j.HandedOver...)
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
