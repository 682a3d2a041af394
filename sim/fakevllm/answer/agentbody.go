package answer

import (
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// AgentBody renders the whole answer of one of the two agents' APIs.
func (j *Reply) AgentBody(ln *Lane) []byte {
	b := make([]byte, 0, 2048+len(ln.Seq.Text))
	if j.API == request.Messages {
		return j.appendMessage(b, ln, j.Details)
	}
	return append(j.AppendResponse(b, ln, ""), '}')
}

// appendMessage renders the answer of /v1/messages, which has no nulls.
func (j *Reply) appendMessage(b []byte, ln *Lane, details bool) []byte {
	b = append(b, `{"id":`...)
	b = jsontext.AppendString(b, j.ID)
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
	b = jsontext.AppendString(b, j.ServedAs)
	if reason := j.stopReason(ln); reason != "" {
		b = jsontext.AppendString(append(b, `,"stop_reason":`...), reason)
	}
	b = append(b, `,"usage":`...)
	b = j.appendMessageUsage(b, ln.Seq.N, details)
	if j.HandedOver != nil {
		b = append(append(b, `,"kv_transfer_params":`...), j.HandedOver...)
	}
	return append(b, '}')
}

// appendBlock renders one of the content blocks of a whole message.
func (j *Reply) appendBlock(b []byte, index int, p part) []byte {
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
func (j *Reply) signature(index int) string {
	x := model.HashPiece(j.ID[:min(len(j.ID), 16)]) + uint64(index)
	return model.Hex16(model.Mix(x)) + model.Hex16(model.Mix(^x))
}

// stopReason is why an answer of /v1/messages ended, "" if the engine gave it up (vLLM 0.32,
// entrypoints/anthropic/serving.py, _to_anthropic_stop_reason).
func (j *Reply) stopReason(ln *Lane) string {
	switch {
	case ln.Seq.Finish == "abort":
		return ""
	case ln.Seq.Finish == "length":
		return "max_tokens"
	case ln.calls():
		return "tool_use"
	}
	return "end_turn"
}

// appendMessageUsage renders the usage of /v1/messages. What was read from the cache and
// what was put into it are no part of the input, where they are told.
func (j *Reply) appendMessageUsage(b []byte, output int, details bool) []byte {
	input, created := len(j.Prompts[0]), 0
	if details {
		created = j.createdTokens(input)
		input = max(0, input-j.Cached-created)
	}
	b = strconv.AppendInt(append(b, `{"input_tokens":`...), int64(input), 10)
	b = strconv.AppendInt(append(b, `,"output_tokens":`...), int64(output), 10)
	if details {
		b = strconv.AppendInt(append(b, `,"cache_creation_input_tokens":`...), int64(created), 10)
		b = strconv.AppendInt(append(b, `,"cache_read_input_tokens":`...), int64(j.Cached), 10)
	}
	return append(b, '}')
}

// createdTokens is how many tokens of a prompt were put into the cache: whole blocks.
func (j *Reply) createdTokens(prompt int) int {
	return max(0, prompt/kvcache.DefaultBlockSize*kvcache.DefaultBlockSize-j.Cached) / kvcache.DefaultBlockSize * kvcache.DefaultBlockSize
}

// AppendResponse renders a response object of /v1/responses, but for its last brace.
// status is that of one that has not ended, "" for the answer.
func (j *Reply) AppendResponse(b []byte, ln *Lane, status string) []byte {
	b = append(b, `{"id":`...)
	b = jsontext.AppendString(b, j.ID)
	b = strconv.AppendInt(append(b, `,"created_at":`...), j.Created, 10)
	ended := status == ""
	incomplete := ended && ln.Seq.Finish == "length"
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
	b = jsontext.AppendString(b, j.ServedAs)
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
	prompt, output := len(j.Prompts[0]), ln.Seq.N
	b = strconv.AppendInt(append(b, `{"input_tokens":`...), int64(prompt), 10)
	b = strconv.AppendInt(append(b, `,"input_tokens_details":{"cached_tokens":`...), int64(j.Cached), 10)
	b = strconv.AppendInt(append(b, `,"cache_write_tokens":`...), int64(j.createdTokens(prompt)), 10)
	b = strconv.AppendInt(append(b, `,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":`...), int64(output), 10)
	b = append(b, `,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":`...)
	b = append(strconv.AppendInt(b, int64(prompt+output), 10), `},"kv_transfer_params":`...)
	if j.HandedOver == nil {
		return append(b, "null"...)
	}
	return append(b, j.HandedOver...)
}

// itemID is the id of an item of the output.
func (j *Reply) itemID(index int, k partKind) string {
	id := map[partKind]string{kindThinking: "rs_", kindText: "msg_", kindCall: "fc_"}[k] + j.Base
	if index > 0 {
		id += "_" + strconv.Itoa(index)
	}
	return id
}

// appendItem renders an item of the output; one in progress has no text yet.
func (j *Reply) appendItem(b []byte, index int, p part, status string) []byte {
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
