package answer

import (
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

// chatTail and textTail end the event of a token if the request has no special options.
const chatTail = `"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"
const textTail = `","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}` + "\n\n"

// ChunkHead returns the common beginning of all events of a request, up to the index.
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
			b = j.AppendUsage(append(b, `,"usage":`...), len(j.Prompts[0]), 0, 0, false, false)
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
	if j.AddGenerate || len(j.Messages) == 0 {
		return "assistant"
	}
	return j.Messages[len(j.Messages)-1].Role
}

// EchoText returns the text that echo puts before a chat answer: the last message, if it has the
// answer's role.
func (j *Reply) EchoText() string {
	if !j.Echo {
		return ""
	}
	if last := j.Messages[len(j.Messages)-1]; last.Role == j.role() {
		return last.Text
	}
	return ""
}

// Begin prepares the part before the text, which is the same in all events of a lane.
func (ln *Lane) Begin(j *Reply, head []byte) {
	ln.head = strconv.AppendInt(append(make([]byte, 0, len(head)+32), head...), int64(ln.Index), 10)
	ln.parser = j.newParser(ln)
	switch {
	case ln.calling, ln.parser != nil:
		ln.head = append(ln.head, `,"delta":{`...)
	case j.Chat:
		ln.head = append(ln.head, `,"delta":{"content":"`...)
	default:
		ln.head = append(ln.head, `,"text":"`...)
	}
}

// AppendEvent renders the event of a token. For benchmarks, it does not allocate if the request has no
// special options. It appends nothing while the token waits for others of its event, and if the parser
// returns nothing for it.
func (j *Reply) AppendEvent(buf []byte, ln *Lane, id int, text bool) []byte {
	ln.pending = append(ln.pending, id)
	first := !ln.began
	if !first && ln.Seq.Finish == "" && !ln.calling && len(ln.pending) < j.Interval {
		return buf
	}
	var d delta
	if ln.parser != nil {
		d = j.parsed(ln)
		if d.empty() && ln.Seq.Finish == "" && (j.HideReasoning || !j.ReturnTokenIDs && j.Logprobs == nil) {
			ln.began, ln.pending = true, ln.pending[:0]
			return buf
		}
	}
	simple := j.Logprobs == nil && !j.ReturnTokenIDs && !j.ContinuousUsage && !j.Echo && ln.Seq.Finish == "" && !ln.calling && ln.parser == nil
	buf = append(buf, ln.head...)
	if !ln.calling && ln.parser == nil && first && j.Echo {
		buf = jsontext.AppendText(buf, j.Text(ln.Prompt))
	}
	switch {
	case ln.parser != nil:
		buf = d.render(buf)
	case ln.calling:
		buf = ln.scripted.appendDelta(buf, ln.Seq.N)
	case j.EchoOnly:
	case ln.Seq.Keep:
		buf = jsontext.AppendText(buf, ln.Seq.Delta())
	case text:
		buf = model.AppendWordJSON(buf, id)
	}
	switch {
	case simple && j.Chat:
		buf = append(buf, chatTail...)
	case simple:
		buf = append(buf, textTail...)
	default:
		buf = j.appendTail(buf, ln, first)
	}
	ln.began, ln.pending = true, ln.pending[:0]
	return buf
}

// parsed parses the text that is ready.
func (j *Reply) parsed(ln *Lane) delta {
	text := string(ln.Seq.Delta())
	ln.parser.count(ln.pending, text)
	d := ln.parser.feed(text, ln.Seq.Finish != "")
	if j.OneCall { // vLLM, maybe_filter_parallel_tool_calls
		d.calls = slices.DeleteFunc(d.calls, func(c callDelta) bool { return c.index > 0 })
	}
	if j.HideReasoning {
		d.reasoning = ""
	}
	ln.called = ln.called || len(d.calls) > 0
	return d
}

// appendTail closes the text and renders the rest of an event in full.
func (j *Reply) appendTail(b []byte, ln *Lane, first bool) []byte {
	switch {
	case ln.calling, ln.parser != nil:
		b = append(b, `},"logprobs":`...)
	case j.Chat:
		b = append(b, `"},"logprobs":`...)
	default:
		b = append(b, `","logprobs":`...)
	}
	ids := j.Prompts[ln.Prompt]
	hidden := ln.parser != nil && j.HideReasoning
	switch {
	case j.Logprobs == nil || ln.calling || hidden:
		b = append(b, "null"...)
	case j.Chat:
		b = appendChatLogprobs(b, ln.pending, *j.Logprobs)
	case first && j.Echo:
		b = appendTextLogprobs(b, slices.Concat(ids, ln.pending), 1, 0)
	default:
		b = appendTextLogprobs(b, ln.pending, 0, ln.offset)
	}
	if first && j.Echo {
		ln.offset += utf8.RuneCountInString(j.Text(ln.Prompt))
	}
	for _, id := range ln.pending {
		ln.offset += utf8.RuneCount(model.AppendWord(nil, id))
	}
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
	b = jsontext.Append(b, `,"token_ids":$}]`, maybe(ln.pending, j.ReturnTokenIDs && !hidden))
	if j.ContinuousUsage {
		b = j.AppendUsage(append(b, `,"usage":`...), len(ids), ln.Seq.N, ln.Reasoning(), false, false)
	}
	if ln.Seq.Finish != "" && ln.Index == 0 && j.TransferParams != nil {
		b = jsontext.Append(b, `,"kv_transfer_params":$`, raw(j.TransferParams))
	}
	return append(b, "}\n\n"...)
}

// appendDelta appends the delta of the newest token of a required call.
func (o *scripted) appendDelta(b []byte, n int) []byte {
	switch {
	case n == 1:
		return jsontext.Append(b, `"tool_calls":[{"id":$,"type":"function","index":0,"function":{"name":$,"arguments":""}}]`, o.parts[0].id, o.parts[0].name)
	case n <= len(o.said):
		return jsontext.Append(b, `"tool_calls":[{"index":0,"function":{"arguments":$}}]`, o.said[n-1].text)
	}
	return b // EOS: an empty delta
}
