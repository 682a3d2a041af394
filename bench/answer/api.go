package answer

import (
	"fmt"
	"strconv"
)

// API is which of the APIs that generate a request is of. The zero value is a chat.
type API uint8

// The APIs.
const (
	Chat API = iota
	Responses
	Messages
)

// Path is where its requests go.
func (a API) Path() string {
	switch a {
	case Responses:
		return "/v1/responses"
	case Messages:
		return "/v1/messages"
	case Chat:
	}
	return Path
}

// input opens the prompt in a body, up to its quote.
func (a API) input() string {
	if a == Responses {
		return `"input":[{"role":"user","content":`
	}
	return `"messages":[{"role":"user","content":`
}

// limit opens the number of tokens in a body.
func (a API) limit() string {
	if a == Responses {
		return `,"max_output_tokens":`
	}
	return MaxTokens
}

// events are those of a stream as vLLM 0.32 spells them. What comes before the first
// token is one event of a chat and several of the others, in one piece; what comes
// behind the last token likewise. usage is "" for a chat without it.
func (a API) events(tokens, prompt int, sum uint32, withUsage bool) (events [kinds]string) {
	text := " " + zeroTag + ".000000"
	firstText := text + proof(prompt, sum)
	switch a {
	case Responses:
		named := func(name, more string) string {
			return "event: " + name + "\ndata: {\"type\":\"" + name + "\",\"sequence_number\":1" + more + "}\n\n"
		}
		const item = `,"item_id":"msg_` + zeroTag + `","output_index":0,"content_index":0`
		delta := func(text string) string {
			return named("response.output_text.delta", item+`,"delta":"`+text+`","logprobs":[]`)
		}
		begun := `,"response":{"id":"resp_` + zeroTag + `","object":"response","model":"` + Model + `","status":"in_progress","output":[],"usage":null,"kv_transfer_params":null}`
		events[role] = named("response.created", begun) + named("response.in_progress", begun) +
			named("response.output_item.added", `,"output_index":0,"item":{"id":"msg_`+zeroTag+`","type":"message","role":"assistant","status":"in_progress","content":[]}`) +
			named("response.content_part.added", item+`,"part":{"type":"output_text","text":"","annotations":[]}`)
		events[first], events[middle], events[last] = delta(firstText), delta(text), delta(text)
		events[usage] = named("response.output_text.done", item+`,"text":""`) + named("response.output_item.done", `,"output_index":0,"item":{"id":"msg_`+zeroTag+`"}`)
		events[done] = named("response.completed", `,"response":`+a.whole("", tokens, prompt, "null"))
	case Messages:
		named := func(name, more string) string {
			return "event: " + name + "\ndata: {\"type\":\"" + name + "\"" + more + "}\n\n"
		}
		delta := func(text string) string {
			return named("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"`+text+`"}`)
		}
		events[role] = named("message_start", `,"message":{"id":"chatcmpl-`+zeroTag+`","type":"message","role":"assistant","content":[],"model":"`+Model+
			`","stop_reason":null,"stop_sequence":null,"usage":`+a.counts(prompt, 0)+`}`) +
			named("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`)
		events[first], events[middle], events[last] = delta(firstText), delta(text), delta(text)
		events[usage] = named("content_block_stop", `,"index":0`) +
			named("message_delta", `,"delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":`+a.counts(prompt, tokens))
		events[done] = named("message_stop", "")
	case Chat:
		return chatEvents(tokens, prompt, sum, withUsage)
	}
	return events
}

// counts is the usage object; a token of the prompt is four bytes.
func (a API) counts(prompt, tokens int) string {
	p := (prompt + 3) / 4
	switch a {
	case Responses:
		return fmt.Sprintf(`{"input_tokens":%d,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}`, p, tokens, p+tokens)
	case Messages:
		return fmt.Sprintf(`{"input_tokens":%d,"output_tokens":%d}`, p, tokens)
	case Chat:
	}
	return counts(prompt, tokens)
}

// whole is an answer with that text, which ends with its hand-over; "" for none.
func (a API) whole(text string, tokens, prompt int, kv string) string {
	switch a {
	case Responses:
		return `{"id":"resp_` + zeroTag + `","created_at":1700000000,"incomplete_details":null,"model":"` + Model + `","object":"response","output":[{"id":"msg_` + zeroTag +
			`","type":"message","role":"assistant","status":"completed","content":[{"annotations":[],"text":"` + text + `","type":"output_text","logprobs":null}]}],"max_output_tokens":` +
			strconv.Itoa(tokens) + `,"previous_response_id":null,"status":"completed","usage":` + a.counts(prompt, tokens) + `,` + Handover + kv + `}`
	case Messages:
		if kv != "" {
			kv = "," + Handover + kv
		}
		return `{"id":"chatcmpl-` + zeroTag + `","type":"message","role":"assistant","content":[{"type":"text","text":"` + text + `"}],"model":"` + Model +
			`","stop_reason":"max_tokens","usage":` + a.counts(prompt, tokens) + kv + `}`
	case Chat:
	}
	return `{"id":"chatcmpl-` + zeroTag + `","object":"chat.completion","created":1700000000,"model":"` + Model +
		`","choices":[{"index":0,"message":{"role":"assistant","content":"` + text +
		`","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}],` +
		`"service_tier":null,"system_fingerprint":null,"usage":` + a.counts(prompt, tokens) + `,"prompt_logprobs":null,"prompt_token_ids":null,` + Handover + kv + `}`
}
