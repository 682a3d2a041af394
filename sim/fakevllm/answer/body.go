package answer

import (
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

// Body renders the response with all fields that vLLM dumps.
func (j *Reply) Body(lanes []Lane) []byte {
	size := 1024
	for i := range lanes {
		size += len(lanes[i].Seq.Text) + 512 + 64*len(lanes[i].Tokens)
	}
	b := append(make([]byte, 0, size), `{"id":`...)
	b = jsontext.AppendString(b, j.ID)
	if j.Chat {
		b = append(b, `,"object":"chat.completion","created":`...)
	} else {
		b = append(b, `,"object":"text_completion","created":`...)
	}
	b = strconv.AppendInt(b, j.Created, 10)
	b = append(b, `,"model":`...)
	b = jsontext.AppendString(b, j.ServedAs)
	b = append(b, `,"choices":[`...)
	prompt, completion := 0, 0
	for _, ids := range j.Prompts {
		prompt += len(ids)
	}
	for i := range lanes {
		if i > 0 {
			b = append(b, ',')
		}
		completion += lanes[i].Seq.N
		if j.Chat {
			b = appendChatChoice(b, j, &lanes[i])
		} else {
			b = appendTextChoice(b, j, &lanes[i])
		}
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":null,"usage":`...)
	b = j.AppendUsage(b, prompt, completion, true, true)
	if j.Chat {
		b = append(b, `,"prompt_logprobs":`...)
		b = appendPromptLogprobs(b, j, 0)
		b = append(b, `,"prompt_token_ids":`...)
		b = appendMaybeInts(b, j.Prompts[0], j.ReturnTokenIDs)
		b = append(b, `,"prompt_text":null`...)
	}
	b = append(b, `,"kv_transfer_params":`...)
	if j.HandedOver == nil {
		b = append(b, "null"...)
	}
	return append(append(b, j.HandedOver...), `,"ec_transfer_params":null,"metrics":null}`...)
}

func appendChatChoice(b []byte, j *Reply, ln *Lane) []byte {
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(ln.Index), 10)
	b = append(b, `,"message":{"role":`...)
	b = jsontext.AppendString(b, j.role())
	b = append(b, `,"content":"`...)
	if ln.call == nil {
		b = jsontext.AppendText(b, j.EchoText())
		b = jsontext.AppendText(b, ln.Seq.Text)
	}
	b = append(b, `","refusal":null,"annotations":null,"audio":null,"function_call":null`...)
	if ln.call != nil {
		b = append(b, `,"tool_calls":[{"id":`...)
		b = jsontext.AppendString(b, ln.call.id)
		b = append(b, `,"type":"function","function":{"name":`...)
		b = jsontext.AppendString(b, ln.call.name)
		b = append(b, `,"arguments":`...)
		b = jsontext.AppendString(b, ln.call.upTo(ln.Seq.N))
		b = append(b, `}}]`...)
	}
	b = append(b, `,"reasoning":null},"logprobs":`...)
	if j.Logprobs == nil || ln.call != nil {
		b = append(b, "null"...)
	} else {
		b = append(b, `{"content":[`...)
		for i, id := range ln.Tokens {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendChatLogprob(b, id, *j.Logprobs)
		}
		b = append(b, "]}"...)
	}
	b = append(b, `,"finish_reason":`...)
	b = jsontext.AppendString(b, ln.FinishReason(j))
	b = AppendReason(append(b, `,"stop_reason":`...), ln.Seq.Reason)
	b = append(b, `,"token_ids":`...)
	return append(appendMaybeInts(b, ln.Tokens, j.ReturnTokenIDs), `,"routed_experts":null}`...)
}

func appendTextChoice(b []byte, j *Reply, ln *Lane) []byte {
	ids := j.Prompts[ln.Prompt]
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(ln.Index), 10)
	b = append(b, `,"text":"`...)
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
		b = appendTextLogprobs(b, append(append([]int(nil), ids...), ln.Tokens...), 1, 0)
	default:
		b = appendTextLogprobs(b, ln.Tokens, 0, 0)
	}
	b = append(b, `,"finish_reason":`...)
	b = jsontext.AppendString(b, ln.FinishReason(j))
	b = AppendReason(append(b, `,"stop_reason":`...), ln.Seq.Reason)
	b = append(b, `,"token_ids":`...)
	b = appendMaybeInts(b, ln.Tokens, j.ReturnTokenIDs)
	b = append(b, `,"prompt_logprobs":`...)
	b = appendPromptLogprobs(b, j, ln.Prompt)
	b = append(b, `,"prompt_token_ids":`...)
	return append(appendMaybeInts(b, ids, j.ReturnTokenIDs), `,"routed_experts":null}`...)
}

func appendMaybeInts(b []byte, ids []int, show bool) []byte {
	if !show {
		return append(b, "null"...)
	}
	return jsontext.AppendInts(b, ids)
}

// appendPromptLogprobs: null for the first token, one object for each other.
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
		b = append(b, `,{"`...)
		b = strconv.AppendInt(b, int64(id), 10)
		b = append(b, `":{"logprob":`...)
		b = appendLogprob(b, id)
		b = append(b, `,"rank":1,"decoded_token":"`...)
		b = append(model.AppendWordJSON(b, id), `"}}`...)
	}
	return append(b, ']')
}

// upTo is the arguments after n tokens of the call.
func (c *call) upTo(n int) string {
	var s strings.Builder
	for i := 0; i < len(c.parts) && i+2 <= n; i++ {
		s.WriteString(c.parts[i])
	}
	return s.String()
}
