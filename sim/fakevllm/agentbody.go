package fakevllm

import (
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// agentBody renders the whole answer of one of the two agents' APIs.
func (j *reply) agentBody(ln *lane) []byte {
	b := make([]byte, 0, 2048+len(ln.seq.Text))
	if j.API == request.Messages {
		return j.appendMessage(b, ln, j.details)
	}
	return append(j.appendResponse(b, ln, ""), '}')
}

// appendMessage renders the answer of /v1/messages, which has no nulls.
func (j *reply) appendMessage(b []byte, ln *lane, details bool) []byte {
	b = append(b, `{"id":`...)
	b = jsontext.AppendString(b, j.id)
	b = append(b, `,"type":"message","role":"assistant","content":[`...)
	parts := ln.parts()
	if len(parts) == 0 {
		parts = []part{{kind: kindText}} // clients look for one
	}
	for i, p := range parts {
		if i > 0 {
			b = append(b, ',')
		}
		b = j.appendBlock(b, i, p)
	}
	b = append(b, `],"model":`...)
	b = jsontext.AppendString(b, j.model)
	b = append(b, `,"stop_reason":`...)
	b = jsontext.AppendString(b, j.stopReason(ln))
	b = append(b, `,"usage":`...)
	b = j.appendMessageUsage(b, ln.seq.N, details)
	if j.kvJSON != nil {
		b = append(append(b, `,"kv_transfer_params":`...), j.kvJSON...)
	}
	return append(b, '}')
}

// appendBlock renders one of the content blocks of a whole message.
func (j *reply) appendBlock(b []byte, index int, p part) []byte {
	switch p.kind {
	case kindCall:
		b = jsontext.AppendString(append(b, `{"type":"tool_use","id":`...), p.id)
		b = jsontext.AppendString(append(b, `,"name":`...), p.name)
		return append(append(append(b, `,"input":`...), p.text...), '}')
	case kindThinking:
		b = jsontext.AppendString(append(b, `{"type":"thinking","thinking":`...), p.text)
		return append(jsontext.AppendString(append(b, `,"signature":`...), j.signature(index)), '}')
	}
	return append(jsontext.AppendString(append(b, `{"type":"text","text":`...), p.text), '}')
}

// signature is what a client sends back with what the model thought.
func (j *reply) signature(index int) string {
	x := model.HashPiece(j.id[:min(len(j.id), 16)]) + uint64(index)
	return model.Hex16(model.Mix(x)) + model.Hex16(model.Mix(^x))
}

// stopReason is why an answer of /v1/messages ended.
func (j *reply) stopReason(ln *lane) string {
	switch {
	case ln.seq.Finish == "length":
		return "max_tokens"
	case ln.calls():
		return "tool_use"
	}
	return "end_turn"
}

// appendMessageUsage renders the usage of /v1/messages. What was read from the cache and
// what was put into it are no part of the input, where they are told.
func (j *reply) appendMessageUsage(b []byte, output int, details bool) []byte {
	input, created := len(j.Prompts[0]), 0
	if details {
		created = j.createdTokens(input)
		input = max(0, input-j.cached-created)
	}
	b = strconv.AppendInt(append(b, `{"input_tokens":`...), int64(input), 10)
	b = strconv.AppendInt(append(b, `,"output_tokens":`...), int64(output), 10)
	if details {
		b = strconv.AppendInt(append(b, `,"cache_creation_input_tokens":`...), int64(created), 10)
		b = strconv.AppendInt(append(b, `,"cache_read_input_tokens":`...), int64(j.cached), 10)
	}
	return append(b, '}')
}

// createdTokens is how many tokens of a prompt were put into the cache: whole blocks.
func (j *reply) createdTokens(prompt int) int {
	return max(0, prompt/kvcache.DefaultBlockSize*kvcache.DefaultBlockSize-j.cached) / kvcache.DefaultBlockSize * kvcache.DefaultBlockSize
}

// appendResponse renders a response object of /v1/responses, but for its last brace.
// status is that of one that has not ended, "" for the answer.
func (j *reply) appendResponse(b []byte, ln *lane, status string) []byte {
	b = append(b, `{"id":`...)
	b = jsontext.AppendString(b, j.id)
	b = strconv.AppendInt(append(b, `,"created_at":`...), j.created, 10)
	ended := status == ""
	incomplete := ended && ln.seq.Finish == "length"
	if incomplete {
		status = "incomplete"
		b = append(b, `,"incomplete_details":{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, `,"incomplete_details":null`...)
	}
	if ended && !incomplete {
		status = "completed"
	}
	b = append(b, `,"metadata":null,"model":`...)
	b = jsontext.AppendString(b, j.model)
	b = append(b, `,"object":"response","output":[`...)
	if ended {
		items := ln.parts()
		if j.Stream {
			items = ln.said() // what the events said
		}
		for i, p := range items {
			if i > 0 {
				b = append(b, ',')
			}
			b = j.appendItem(b, i, p, "completed")
		}
	}
	b = append(b, `],"parallel_tool_calls":true,"temperature":1.0,"tools":[],"top_p":1.0,"background":false,"max_output_tokens":`...)
	b = strconv.AppendInt(b, int64(j.limits[0]), 10)
	b = append(b, `,"previous_response_id":null,"status":`...)
	b = jsontext.AppendString(b, status)
	b = append(b, `,"truncation":"disabled","usage":`...)
	if !ended {
		return append(b, `null,"kv_transfer_params":null`...)
	}
	prompt, output := len(j.Prompts[0]), ln.seq.N
	b = strconv.AppendInt(append(b, `{"input_tokens":`...), int64(prompt), 10)
	b = strconv.AppendInt(append(b, `,"input_tokens_details":{"cached_tokens":`...), int64(j.cached), 10)
	b = strconv.AppendInt(append(b, `,"cache_write_tokens":`...), int64(j.createdTokens(prompt)), 10)
	b = strconv.AppendInt(append(b, `,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":`...), int64(output), 10)
	b = append(b, `,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":`...)
	b = append(strconv.AppendInt(b, int64(prompt+output), 10), `},"kv_transfer_params":`...)
	if j.kvJSON == nil {
		return append(b, "null"...)
	}
	return append(b, j.kvJSON...)
}

// itemID is the id of an item of the output.
func (j *reply) itemID(index int, k partKind) string {
	id := map[partKind]string{kindThinking: "rs_", kindText: "msg_", kindCall: "fc_"}[k] + j.base
	if index > 0 {
		id += "_" + strconv.Itoa(index)
	}
	return id
}

// appendItem renders an item of the output; one in progress has no text yet.
func (j *reply) appendItem(b []byte, index int, p part, status string) []byte {
	id := j.itemID(index, p.kind)
	done := status == "completed"
	switch p.kind {
	case kindCall:
		b = jsontext.AppendString(append(b, `{"arguments":`...), p.text)
		b = jsontext.AppendString(append(b, `,"call_id":`...), p.id)
		b = jsontext.AppendString(append(b, `,"name":`...), p.name)
		b = jsontext.AppendString(append(b, `,"type":"function_call","id":`...), id)
		b = append(b, `,"async":null,"caller":null,"namespace":null,"status":`...)
		return append(jsontext.AppendString(b, status), '}')
	case kindThinking:
		b = jsontext.AppendString(append(b, `{"id":`...), id)
		b = append(b, `,"summary":[],"type":"reasoning","content":`...)
		if done {
			b = append(appendContentPart(append(b, '['), p, "null"), ']')
		} else {
			b = append(b, "null"...)
		}
		b = append(b, `,"encrypted_content":null,"status":`...)
		return append(jsontext.AppendString(b, status), '}')
	}
	b = jsontext.AppendString(append(b, `{"id":`...), id)
	b = append(b, `,"content":[`...)
	if done {
		b = appendContentPart(b, p, "null")
	}
	b = append(b, `],"role":"assistant","status":`...)
	return append(jsontext.AppendString(b, status), `,"type":"message","phase":null}`...)
}

// appendContentPart renders a part of an item's content.
func appendContentPart(b []byte, p part, logprobs string) []byte {
	if p.kind == kindThinking {
		return append(jsontext.AppendString(append(b, `{"text":`...), p.text), `,"type":"reasoning_text"}`...)
	}
	b = jsontext.AppendString(append(b, `{"annotations":[],"text":`...), p.text)
	return append(append(append(b, `,"type":"output_text","logprobs":`...), logprobs...), '}')
}
