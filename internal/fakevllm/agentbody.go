package fakevllm

import "strconv"

// agentBody renders the whole answer of one of the two agents' APIs.
func (x *exchange) agentBody(j *job, ln *lane) []byte {
	b := make([]byte, 0, 2048+len(ln.seq.text))
	if j.api == apiMessages {
		return j.appendMessage(b, ln)
	}
	return append(j.appendResponse(b, ln, ""), '}')
}

// appendMessage renders the answer of /v1/messages, which has no nulls.
func (j *job) appendMessage(b []byte, ln *lane) []byte {
	b = append(b, `{"id":`...)
	b = appendJSONString(b, j.id)
	b = append(b, `,"type":"message","role":"assistant","content":[`...)
	switch {
	case ln.call != nil:
		b = append(b, `{"type":"tool_use","id":`...)
		b = appendJSONString(b, ln.call.id)
		b = append(b, `,"name":`...)
		b = appendJSONString(b, ln.call.name)
		b = append(append(b, `,"input":`...), ln.call.upTo(ln.seq.n)...)
		b = append(b, '}')
	case len(ln.seq.text) > 0:
		b = append(b, `{"type":"text","text":"`...)
		b = append(appendJSONText(b, ln.seq.text), `"}`...)
	}
	b = append(b, `],"model":`...)
	b = appendJSONString(b, j.model)
	b = append(b, `,"stop_reason":`...)
	b = appendJSONString(b, j.stopReason(ln))
	b = append(b, `,"usage":`...)
	b = j.appendMessageUsage(b, ln.seq.n, true)
	if j.kvJSON != nil {
		b = append(append(b, `,"kv_transfer_params":`...), j.kvJSON...)
	}
	return append(b, '}')
}

// stopReason is why an answer of /v1/messages ended.
func (j *job) stopReason(ln *lane) string {
	switch {
	case ln.seq.finish == "length":
		return "max_tokens"
	case ln.call != nil:
		return "tool_use"
	}
	return "end_turn"
}

// appendMessageUsage renders a usage of /v1/messages. With --enable-prompt-tokens-details
// the last one tells what of the prompt came from the cache and what was put into it;
// input_tokens is then the rest.
func (j *job) appendMessageUsage(b []byte, output int, final bool) []byte {
	input := len(j.prompts[0])
	if final && j.details {
		input = max(0, input-j.cached-j.cacheCreated())
	}
	b = strconv.AppendInt(append(b, `{"input_tokens":`...), int64(input), 10)
	b = strconv.AppendInt(append(b, `,"output_tokens":`...), int64(output), 10)
	if final && j.details {
		b = strconv.AppendInt(append(b, `,"cache_creation_input_tokens":`...), int64(j.cacheCreated()), 10)
		b = strconv.AppendInt(append(b, `,"cache_read_input_tokens":`...), int64(j.cached), 10)
	}
	return append(b, '}')
}

// cacheCreated is how many tokens of the prompt were put into the cache.
func (j *job) cacheCreated() int {
	return max(0, len(j.prompts[0])/cacheBlock*cacheBlock-j.cached) / cacheBlock * cacheBlock
}

// appendResponse renders a response object of /v1/responses, but for its last brace.
// status is that of one that has not ended, "" for the answer.
func (j *job) appendResponse(b []byte, ln *lane, status string) []byte {
	b = append(b, `{"id":`...)
	b = appendJSONString(b, j.id)
	b = strconv.AppendInt(append(b, `,"created_at":`...), j.created, 10)
	ended := status == ""
	incomplete := ended && ln.seq.finish == "length"
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
	b = appendJSONString(b, j.model)
	b = append(b, `,"object":"response","output":[`...)
	if ended {
		b = j.appendItem(b, ln, "completed")
	}
	b = append(b, `],"parallel_tool_calls":true,"temperature":1.0,"tools":[],"top_p":1.0,"background":false,"max_output_tokens":`...)
	b = strconv.AppendInt(b, int64(j.limits[0]), 10)
	b = append(b, `,"previous_response_id":null,"status":`...)
	b = appendJSONString(b, status)
	b = append(b, `,"truncation":"disabled","usage":`...)
	if !ended {
		return append(b, `null,"kv_transfer_params":null`...)
	}
	prompt, output := len(j.prompts[0]), ln.seq.n
	b = strconv.AppendInt(append(b, `{"input_tokens":`...), int64(prompt), 10)
	b = strconv.AppendInt(append(b, `,"input_tokens_details":{"cached_tokens":`...), int64(j.cached), 10)
	b = strconv.AppendInt(append(b, `,"cache_write_tokens":`...), int64(j.cacheCreated()), 10)
	b = strconv.AppendInt(append(b, `,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":`...), int64(output), 10)
	b = append(b, `,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":`...)
	b = append(strconv.AppendInt(b, int64(prompt+output), 10), `},"kv_transfer_params":`...)
	if j.kvJSON == nil {
		return append(b, "null"...)
	}
	return append(b, j.kvJSON...)
}

// appendItem renders the only item of the output.
func (j *job) appendItem(b []byte, ln *lane, status string) []byte {
	if ln.call != nil {
		b = append(b, `{"arguments":`...)
		b = appendJSONString(b, ln.call.upTo(ln.seq.n))
		b = append(b, `,"call_id":`...)
		b = appendJSONString(b, ln.call.id)
		b = append(b, `,"name":`...)
		b = appendJSONString(b, ln.call.name)
		b = append(b, `,"type":"function_call","id":"fc_`...)
		b = append(append(b, j.base...), `","status":`...)
		return append(appendJSONString(b, status), '}')
	}
	b = append(append(b, `{"id":"msg_`...), j.base...)
	b = append(b, `","content":[`...)
	if status == "completed" {
		b = append(b, `{"annotations":[],"text":"`...)
		b = append(appendJSONText(b, ln.seq.text), `","type":"output_text","logprobs":null}`...)
	}
	b = append(b, `],"role":"assistant","status":`...)
	return append(appendJSONString(b, status), `,"type":"message"}`...)
}
