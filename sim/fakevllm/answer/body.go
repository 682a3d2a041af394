package answer

import (
	"slices"
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
	object := "text_completion"
	if j.Chat {
		object = "chat.completion"
	}
	b := jsontext.Append(make([]byte, 0, size), `{"id":$,"object":$,"created":$,"model":$,"choices":[`, j.ID, object, j.Created, j.ServedAs)
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
		b = appendPromptLogprobs(append(b, `,"prompt_logprobs":`...), j, 0)
		b = jsontext.Append(b, `,"prompt_token_ids":$,"prompt_text":null`, maybe(j.Prompts[0], j.ReturnTokenIDs))
	}
	return jsontext.Append(b, `,"kv_transfer_params":$,"ec_transfer_params":null,"metrics":null}`, raw(j.HandedOver))
}

// maybe returns ids if they are shown, else nil.
func maybe(ids []int, show bool) any {
	if !show {
		return nil
	}
	return ids
}

func appendChatChoice(b []byte, j *Reply, ln *Lane) []byte {
	b = jsontext.Append(b, `{"index":$,"message":{"role":$,"content":"`, ln.Index, j.role())
	if ln.call == nil {
		b = jsontext.AppendText(b, j.EchoText())
		b = jsontext.AppendText(b, ln.Seq.Text)
	}
	b = append(b, `","refusal":null,"annotations":null,"audio":null,"function_call":null`...)
	if ln.call != nil {
		b = jsontext.Append(b, `,"tool_calls":[{"id":$,"type":"function","function":{"name":$,"arguments":$}}]`, ln.call.id, ln.call.name, ln.call.upTo(ln.Seq.N))
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
	return jsontext.Append(b, `,"finish_reason":$,"stop_reason":$,"token_ids":$,"routed_experts":null}`,
		ln.FinishReason(j), ln.Seq.Reason, maybe(ln.Tokens, j.ReturnTokenIDs))
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

// upTo returns the arguments after n tokens of the call.
func (c *call) upTo(n int) string {
	var s strings.Builder
	for i := 0; i < len(c.parts) && i+2 <= n; i++ {
		s.WriteString(c.parts[i])
	}
	return s.String()
}
