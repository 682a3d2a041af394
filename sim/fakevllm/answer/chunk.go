package answer

import (
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

// What ends the event of a token when there is nothing special about it.
const chatTail = `"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"
const textTail = `","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}` + "\n\n"

// ChunkHead returns what all events of a request begin with, up to the index.
func (j *Reply) ChunkHead() []byte {
	object := "text_completion"
	if j.Chat {
		object = "chat.completion.chunk"
	}
	return jsontext.Append(make([]byte, 0, 256), `data: {"id":$,"object":$,"created":$,"model":$,"choices":[{"index":`, j.ID, object, j.Created, j.ServedAs)
}

// AppendRole renders the first event of a chat.
func (j *Reply) AppendRole(b []byte, head []byte, index int) []byte {
	usage := func() {
		if j.ContinuousUsage {
			b = j.AppendUsage(append(b, `,"usage":`...), len(j.Prompts[0]), 0, false, false)
		}
	}
	b = jsontext.Append(append(b, head...), `$,"delta":{"role":$,"content":""},"logprobs":null,"finish_reason":null}]`, index, j.role())
	usage()
	b = jsontext.Append(b, `,"prompt_token_ids":$,"prompt_text":null}`+"\n\n", maybe(j.Prompts[0], j.ReturnTokenIDs))
	if text := j.EchoText(); text != "" {
		b = jsontext.Append(append(b, head...), `$,"delta":{"content":$},"logprobs":null,"finish_reason":null}]`, index, text)
		usage()
		b = append(b, "}\n\n"...)
	}
	return b
}

// role returns the role of the answer.
func (j *Reply) role() string {
	if j.AddGenerate {
		return "assistant"
	}
	return j.Messages[len(j.Messages)-1].Role
}

// EchoText returns what echo puts before a chat answer: the last message if it has the answer's
// role.
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

// AppendEvent renders the event of a token without allocating, for benchmarks.
func (j *Reply) AppendEvent(buf []byte, ln *Lane, id int, text, first bool) []byte {
	simple := j.Logprobs == nil && !j.ReturnTokenIDs && !j.ContinuousUsage && !j.Echo && ln.Seq.Finish == "" && ln.call == nil
	buf = append(buf, ln.head...)
	if ln.call == nil && first && j.Echo {
		buf = jsontext.AppendText(buf, j.Text(ln.Prompt))
	}
	switch {
	case ln.call != nil:
		buf = ln.call.appendDelta(buf, ln.Seq.N)
	case ln.Seq.Keep:
		buf = jsontext.AppendText(buf, ln.Seq.Delta())
	case text && !j.EchoOnly:
		buf = model.AppendWordJSON(buf, id)
	}
	switch {
	case simple && j.Chat:
		return append(buf, chatTail...)
	case simple:
		return append(buf, textTail...)
	}
	return j.appendTail(buf, ln, id, first)
}

// appendTail closes the text and renders the rest of an event in full.
func (j *Reply) appendTail(b []byte, ln *Lane, id int, first bool) []byte {
	switch {
	case ln.call != nil:
		b = append(b, `},"logprobs":`...)
	case j.Chat:
		b = append(b, `"},"logprobs":`...)
	default:
		b = append(b, `","logprobs":`...)
	}
	ids := j.Prompts[ln.Prompt]
	switch {
	case j.Logprobs == nil || ln.call != nil:
		b = append(b, "null"...)
	case j.Chat:
		b = append(appendChatLogprob(append(b, `{"content":[`...), id, *j.Logprobs), "]}"...)
	case first && j.Echo:
		b = appendTextLogprobs(b, append(slices.Clone(ids), id), 1, 0)
	default:
		b = appendTextLogprobs(b, []int{id}, 0, ln.offset)
	}
	if first && j.Echo {
		ln.offset += utf8.RuneCountInString(j.Text(ln.Prompt))
	}
	ln.offset += utf8.RuneCount(model.AppendWord(nil, id))
	if ln.Seq.Finish == "" {
		b = append(b, `,"finish_reason":null`...)
	} else {
		b = jsontext.Append(b, `,"finish_reason":$`, ln.FinishReason(j))
	}
	if ln.Seq.Finish != "" || !j.Chat {
		b = jsontext.Append(b, `,"stop_reason":$`, ln.Seq.Reason)
	}
	if !j.Chat {
		b = jsontext.Append(b, `,"prompt_token_ids":$`, maybe(ids, first && j.ReturnTokenIDs))
	}
	b = jsontext.Append(b, `,"token_ids":$}]`, maybe([]int{id}, j.ReturnTokenIDs))
	if j.ContinuousUsage {
		b = j.AppendUsage(append(b, `,"usage":`...), len(ids), ln.Seq.N, false, false)
	}
	if ln.Seq.Finish != "" && ln.Index == 0 && j.TransferParams != nil {
		b = jsontext.Append(b, `,"kv_transfer_params":$`, raw(j.TransferParams))
	}
	return append(b, "}\n\n"...)
}

// appendDelta renders the inside of "delta" for the nth token of a tool call.
func (c *call) appendDelta(b []byte, n int) []byte {
	switch {
	case n == 1:
		return jsontext.Append(b, `"tool_calls":[{"id":$,"type":"function","index":0,"function":{"name":$,"arguments":""}}]`, c.id, c.name)
	case n-2 < len(c.parts):
		return jsontext.Append(b, `"tool_calls":[{"index":0,"function":{"arguments":$}}]`, c.parts[n-2])
	}
	return b // EOS: an empty delta
}
