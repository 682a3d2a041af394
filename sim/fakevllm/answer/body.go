package answer

import (
	"slices"
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// Body renders the response with all fields that vLLM dumps.
func (j *Reply) Body(lanes []Lane) []byte {
	size := 1024
	for i := range lanes {
		size += len(lanes[i].Seq.Text) + 512 + 64*len(lanes[i].Tokens)
	}
	object := "text_completion"
	if j.Chat {
		object = "chat.completion"
	}
	b := jsontext.Append(make([]byte, 0, size), `{"id":$,"object":$,"created":$,"model":$,"choices":[`, j.ID, object, j.Created, j.ServedAs)
	b = jsontext.AppendList(b, lanes, func(b []byte, i int, _ Lane) []byte {
		if j.Chat {
			return appendChatChoice(b, j, &lanes[i])
		}
		return appendTextChoice(b, j, &lanes[i])
	})
	b = append(b, `],"service_tier":null,"system_fingerprint":null,"usage":`...)
	b = j.AppendTotals(b, lanes, true)
	if j.Chat {
		b = appendPromptLogprobs(append(b, `,"prompt_logprobs":`...), j, 0)
		b = jsontext.Append(b, `,"prompt_token_ids":$,"prompt_text":null`, maybe(j.Prompts[0], j.ReturnTokenIDs))
	}
	return jsontext.Append(b, `,"kv_transfer_params":$,"ec_transfer_params":null,"metrics":null}`, raw(j.TransferParams))
}

// maybe returns ids if they are shown, else nil.
func maybe(ids []int, show bool) any {
	if !show {
		return nil
	}
	return ids
}

func appendChatChoice(b []byte, j *Reply, ln *Lane) []byte {
	content, reasoning := any(nil), any(nil)
	var calls []parsedCall
	hidden := false
	switch {
	case ln.calling:
		content = ""
		call := ln.said()[0]
		calls = []parsedCall{{id: call.id, name: call.name, args: call.text}}
	case j.Model.parses():
		m := j.parse(ln)
		if m.content != "" {
			content = m.content
		}
		if m.reasoning != "" {
			reasoning = m.reasoning
		}
		calls, hidden = m.calls, j.HideReasoning
		ln.called = len(calls) > 0
	default:
		content = j.EchoText() + string(ln.Seq.Text)
	}
	b = jsontext.Append(b, `{"index":$,"message":{"role":$,"content":$,"refusal":null,"annotations":null,"audio":null,"function_call":null`, ln.Index, j.role(), content)
	if len(calls) > 0 {
		b = jsontext.AppendList(append(b, `,"tool_calls":[`...), calls, func(b []byte, _ int, c parsedCall) []byte {
			return jsontext.Append(b, `{"id":$,"type":"function","function":{"name":$,"arguments":$}}`, c.id, c.name, c.args)
		})
		b = append(b, ']')
	}
	b = jsontext.Append(b, `,"reasoning":$},"logprobs":`, reasoning)
	if j.Logprobs == nil || ln.calling || hidden {
		b = append(b, "null"...)
	} else {
		b = appendChatLogprobs(b, ln.Tokens, *j.Logprobs)
	}
	return jsontext.Append(b, `,"finish_reason":$,"stop_reason":$,"token_ids":$,"routed_experts":null}`,
		ln.FinishReason(j), ln.Seq.Reason, maybe(ln.Tokens, j.ReturnTokenIDs && !hidden))
}

func appendTextChoice(b []byte, j *Reply, ln *Lane) []byte {
	ids := j.Prompts[ln.Prompt]
	b = jsontext.Append(b, `{"index":$,"text":"`, ln.Index)
	if j.Echo {
		b = jsontext.AppendText(b, j.Text(ln.Prompt))
	}
	if !j.EchoOnly {
		b = jsontext.AppendText(b, ln.Seq.Text)
	}
	b = append(b, `","logprobs":`...)
	switch {
	case j.Logprobs == nil:
		b = append(b, "null"...)
	case j.EchoOnly:
		b = appendTextLogprobs(b, ids, 1, 0)
	case j.Echo:
		b = appendTextLogprobs(b, slices.Concat(ids, ln.Tokens), 1, 0)
	default:
		b = appendTextLogprobs(b, ln.Tokens, 0, 0)
	}
	b = jsontext.Append(b, `,"finish_reason":$,"stop_reason":$,"token_ids":$,"prompt_logprobs":`, ln.FinishReason(j), ln.Seq.Reason, maybe(ln.Tokens, j.ReturnTokenIDs))
	b = appendPromptLogprobs(b, j, ln.Prompt)
	return jsontext.Append(b, `,"prompt_token_ids":$,"routed_experts":null}`, maybe(ids, j.ReturnTokenIDs))
}

// appendPromptLogprobs renders null for the first token and an object for each other.
func appendPromptLogprobs(b []byte, j *Reply, prompt int) []byte {
	if j.PromptLogprobs == nil {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, id := range j.Prompts[prompt] {
		if i == 0 {
			b = append(b, "null"...)
			continue
		}
		b = jsontext.Append(b, `,{"$":{"logprob":$,"rank":1,"decoded_token":$}}`, id, logprob(id), string(model.AppendWord(nil, id)))
	}
	return append(b, ']')
}

// AppendTokenChoice renders a choice of /inference/v1/generate with the given token ids.
func AppendTokenChoice(b []byte, ln *Lane, ids []int, finish string) []byte {
	var reason, stop any
	if finish != "" {
		reason, stop = finish, ln.Seq.Reason
	}
	return jsontext.Append(b, `{"index":$,"finish_reason":$,"stop_reason":$,"token_ids":$,"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}`,
		ln.Index, reason, stop, ids)
}

// TokensBody renders the whole answer of /inference/v1/generate.
func (j *Reply) TokensBody(lanes []Lane) []byte {
	choices := jsontext.AppendList(nil, lanes, func(b []byte, _ int, ln Lane) []byte { return AppendTokenChoice(b, &ln, ln.Tokens, ln.Seq.Finish) })
	return jsontext.Append(nil, `{"request_id":$,"model":$,"created":$,"usage":$,"prompt_logprobs":null,"prompt_token_id_logprobs":null,"prompt_token_ids":$,`+
		`"mm_placeholders":null,"metrics":null,"kv_transfer_params":$,"ec_transfer_params":null,"output_mode":"tokens","choices":[$]}`,
		j.ID, j.ServedAs, j.Created, raw(j.AppendTotals(nil, lanes, true)), maybe(j.Prompts[0], j.ReturnTokenIDs), raw(j.TransferParams), raw(choices))
}

// AgentBody renders the whole answer of /v1/messages or /v1/responses.
func (j *Reply) AgentBody(ln *Lane) []byte {
	b := make([]byte, 0, 2048+len(ln.Seq.Text))
	if j.API == request.Messages {
		return j.appendMessage(b, ln, j.Details)
	}
	return append(j.AppendResponse(b, ln, ""), '}')
}

// raw marks b as JSON; nil is null.
func raw(b []byte) jsontext.Raw { return jsontext.Raw(b) }

// appendMessage renders the answer of /v1/messages, which has no nulls.
func (j *Reply) appendMessage(b []byte, ln *Lane, details bool) []byte {
	b = jsontext.Append(b, `{"id":$,"type":"message","role":"assistant","content":[`, j.ID)
	parts := ln.parts()
	if len(parts) == 0 {
		parts = []part{{kind: kindText}} // clients expect at least one
	}
	b = jsontext.AppendList(b, parts, j.appendBlock)
	b = jsontext.Append(b, `],"model":$`, j.ServedAs)
	if reason := j.stopReason(ln); reason != "" {
		b = jsontext.Append(b, `,"stop_reason":$`, reason)
	}
	b = j.appendMessageUsage(append(b, `,"usage":`...), ln.Seq.N, details)
	if j.TransferParams != nil {
		b = jsontext.Append(b, `,"kv_transfer_params":$`, raw(j.TransferParams))
	}
	return append(b, '}')
}

// appendBlock renders one of the content blocks of a whole message.
func (j *Reply) appendBlock(b []byte, index int, p part) []byte {
	switch p.kind {
	case kindCall:
		return jsontext.Append(b, `{"type":"tool_use","id":$,"name":$,"input":$}`, p.id, p.name, raw([]byte(p.text)))
	case kindThinking:
		return jsontext.Append(b, `{"type":"thinking","thinking":$,"signature":$}`, p.text, j.signature(index))
	}
	return jsontext.Append(b, `{"type":"text","text":$}`, p.text)
}

// signature returns the text that a client sends back with a thinking block.
func (j *Reply) signature(index int) string {
	x := model.HashPiece(j.ID[:min(len(j.ID), 16)]) + uint64(index)
	return model.Hex16(model.Mix(x)) + model.Hex16(model.Mix(^x))
}

// stopReason returns the reason why an answer of /v1/messages ended, "" if the engine aborted it (vLLM 0.32,
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

// appendMessageUsage renders the usage of /v1/messages. With details, input_tokens does not include
// the tokens that were read from the cache or stored in it.
func (j *Reply) appendMessageUsage(b []byte, output int, details bool) []byte {
	input := len(j.Prompts[0])
	if !details {
		return jsontext.Append(b, `{"input_tokens":$,"output_tokens":$}`, input, output)
	}
	created := j.createdTokens(input)
	return jsontext.Append(b, `{"input_tokens":$,"output_tokens":$,"cache_creation_input_tokens":$,"cache_read_input_tokens":$}`,
		max(0, input-j.Cached-created), output, created, j.Cached)
}

// createdTokens returns the number of tokens of a prompt that were stored in the cache, in whole blocks.
func (j *Reply) createdTokens(prompt int) int {
	return max(0, prompt/kvcache.DefaultBlockSize*kvcache.DefaultBlockSize-j.Cached) / kvcache.DefaultBlockSize * kvcache.DefaultBlockSize
}

// AppendResponse renders a response object of /v1/responses, without its last brace. status is the
// status of a response in progress; "" means that it has ended.
func (j *Reply) AppendResponse(b []byte, ln *Lane, status string) []byte {
	ended, incomplete := status == "", "null"
	if ended {
		status = "completed"
		if ln.Seq.Finish == "length" {
			status, incomplete = "incomplete", `{"reason":"max_output_tokens"}`
		}
	}
	b = jsontext.Append(b, `{"id":$,"created_at":$,"incomplete_details":$,"metadata":null,"model":$,"object":"response","output":[`,
		j.ID, j.Created, raw([]byte(incomplete)), j.ServedAs)
	if ended {
		items := ln.parts()
		if j.Stream {
			items = ln.said() // as in the events
		}
		b = jsontext.AppendList(b, items, func(b []byte, i int, p part) []byte { return j.appendItem(b, i, p, "completed") })
	}
	b = jsontext.Append(b, `],"parallel_tool_calls":true,"temperature":1.0,"tools":[],"top_p":1.0,"background":false,"max_output_tokens":$,`+
		`"previous_response_id":null,"status":$,"truncation":"disabled","usage":`, j.limits[0], status)
	if !ended {
		return append(b, `null,"kv_transfer_params":null`...)
	}
	prompt, output := len(j.Prompts[0]), ln.Seq.N
	return jsontext.Append(b, `{"input_tokens":$,"input_tokens_details":{"cached_tokens":$,"cache_write_tokens":$,"input_tokens_per_turn":[],`+
		`"cached_tokens_per_turn":[]},"output_tokens":$,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,`+
		`"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":$},"kv_transfer_params":$`,
		prompt, j.Cached, j.createdTokens(prompt), output, prompt+output, raw(j.TransferParams))
}

// itemID returns the id of an item of the output.
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
	var content []byte
	if status == "completed" {
		content = appendContentPart(nil, p, nil)
	}
	switch p.kind {
	case kindCall:
		return jsontext.Append(b, `{"arguments":$,"call_id":$,"name":$,"type":"function_call","id":$,"async":null,"caller":null,"namespace":null,"status":$}`,
			p.text, p.id, p.name, id, status)
	case kindThinking:
		if content != nil {
			content = append(append([]byte("["), content...), ']')
		}
		return jsontext.Append(b, `{"id":$,"summary":[],"type":"reasoning","content":$,"encrypted_content":null,"status":$}`, id, raw(content), status)
	}
	return jsontext.Append(b, `{"id":$,"content":[$],"role":"assistant","status":$,"type":"message","phase":null}`, id, jsontext.Raw(string(content)), status)
}

// appendContentPart renders a part of an item's content.
func appendContentPart(b []byte, p part, logprobs jsontext.Raw) []byte {
	if p.kind == kindThinking {
		return jsontext.Append(b, `{"text":$,"type":"reasoning_text"}`, p.text)
	}
	return jsontext.Append(b, `{"annotations":[],"text":$,"type":"output_text","logprobs":$}`, p.text, logprobs)
}
