package fakevllm

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// respond answers in one piece.
func (x *exchange) respond(j *job) {
	p, ok := x.first(j)
	if !ok {
		x.gone()
		return
	}
	if j.loadErr != nil {
		x.core.stats.Fail.Add(1)
		x.fail(pydantic.InternalError())
		return
	}
	lanes := j.lanes(true)
	if !x.generate(j, lanes, &p) {
		x.gone()
		return
	}
	for i := range lanes {
		x.core.finished(lanes[i].seq.Finish)
	}
	if e := x.checkCalls(lanes); e != nil {
		x.reject(e)
		return
	}
	x.handOver(j, lanes[0].seq.Finish)
	switch j.API {
	case request.Responses, request.Messages:
		body := x.agentBody(j, &lanes[0])
		j.keep(&lanes[0], body)
		x.send(body)
		return
	case request.Generate:
		x.send(x.tokensBody(j, lanes))
		return
	case request.Completions, request.Chat:
	}
	x.send(x.body(j, lanes))
}

// generate runs all lanes to their end, at the engine's pace.
func (x *exchange) generate(j *job, lanes []lane, p *pace) bool {
	keepIDs := j.ReturnTokenIDs || j.Logprobs != nil || j.API == request.Generate
	open := len(lanes)
	for round := 1; open > 0; round++ {
		if round > 1 && (p.itl > 0 || round%1024 == 0) && !x.tick(p) {
			return false
		}
		for i := range lanes {
			ln := &lanes[i]
			if ln.seq.Finish != "" {
				continue
			}
			id, _ := ln.step()
			x.generated(ln, id)
			if keepIDs {
				ln.tokens = append(ln.tokens, id)
			}
			if ln.seq.Finish != "" {
				open--
			}
		}
	}
	return x.alive()
}

// checkCalls refuses a required call that was cut short, as vLLM does when it
// cannot parse what there is.
func (x *exchange) checkCalls(lanes []lane) *pydantic.Error {
	if x.life.server.opt.AllowCutToolCalls {
		return nil
	}
	for i := range lanes {
		if lanes[i].call != nil && lanes[i].seq.Finish == "length" {
			if x.api == request.Messages {
				return &pydantic.Error{Status: http.StatusInternalServerError, Kind: "internal_error", Message: "Expecting value: line 1 column 1 (char 0)"}
			}
			return cutCall()
		}
	}
	return nil
}

// send writes the whole body, or as much as a fault lets out.
func (x *exchange) send(body []byte) {
	f := x.fault
	if f == nil || f.At == fault.BeforeRead || f.At == fault.AfterRead {
		pydantic.WriteJSON(x.w, http.StatusOK, body)
		x.completed()
		return
	}
	if f.Kind == fault.ErrorEvent {
		x.fail(pydantic.InternalError())
		return
	}
	if f.Ends() && x.strike(fault.AfterRole, 0) {
		return
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(http.StatusOK)
	x.streaming = true
	x.flush()
	if x.strike(fault.AfterHeaders, 0) || x.strike(fault.AfterRole, 0) {
		return
	}
	half := len(body) / 2
	if x.write(body[:half]) && x.strike(fault.AfterTokens, f.Tokens) {
		return
	}
	if x.write(body[half:]) {
		x.completed()
	}
}

// body renders the response with all fields that vLLM dumps.
func (x *exchange) body(j *job, lanes []lane) []byte {
	size := 1024
	for i := range lanes {
		size += len(lanes[i].seq.Text) + 512 + 64*len(lanes[i].tokens)
	}
	b := append(make([]byte, 0, size), `{"id":`...)
	b = jsontext.AppendString(b, j.id)
	if j.Chat {
		b = append(b, `,"object":"chat.completion","created":`...)
	} else {
		b = append(b, `,"object":"text_completion","created":`...)
	}
	b = strconv.AppendInt(b, j.created, 10)
	b = append(b, `,"model":`...)
	b = jsontext.AppendString(b, j.model)
	b = append(b, `,"choices":[`...)
	prompt, completion := 0, 0
	for _, ids := range j.Prompts {
		prompt += len(ids)
	}
	for i := range lanes {
		if i > 0 {
			b = append(b, ',')
		}
		completion += lanes[i].seq.N
		if j.Chat {
			b = appendChatChoice(b, j, &lanes[i])
		} else {
			b = appendTextChoice(b, j, &lanes[i])
		}
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":null,"usage":`...)
	b = x.appendUsage(b, j, prompt, completion, true, true)
	if j.Chat {
		b = append(b, `,"prompt_logprobs":`...)
		b = appendPromptLogprobs(b, j, 0)
		b = append(b, `,"prompt_token_ids":`...)
		b = appendMaybeInts(b, j.Prompts[0], j.ReturnTokenIDs)
		b = append(b, `,"prompt_text":null`...)
	}
	b = append(b, `,"kv_transfer_params":`...)
	if j.kvJSON == nil {
		b = append(b, "null"...)
	}
	return append(append(b, j.kvJSON...), `,"ec_transfer_params":null,"metrics":null}`...)
}

func appendChatChoice(b []byte, j *job, ln *lane) []byte {
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(ln.index), 10)
	b = append(b, `,"message":{"role":`...)
	b = jsontext.AppendString(b, j.role())
	b = append(b, `,"content":"`...)
	if ln.call == nil {
		b = jsontext.AppendText(b, j.echoText())
		b = jsontext.AppendText(b, ln.seq.Text)
	}
	b = append(b, `","refusal":null,"annotations":null,"audio":null,"function_call":null`...)
	if ln.call != nil {
		b = append(b, `,"tool_calls":[{"id":`...)
		b = jsontext.AppendString(b, ln.call.id)
		b = append(b, `,"type":"function","function":{"name":`...)
		b = jsontext.AppendString(b, ln.call.name)
		b = append(b, `,"arguments":`...)
		b = jsontext.AppendString(b, ln.call.upTo(ln.seq.N))
		b = append(b, `}}]`...)
	}
	b = append(b, `,"reasoning":null},"logprobs":`...)
	if j.Logprobs == nil || ln.call != nil {
		b = append(b, "null"...)
	} else {
		b = append(b, `{"content":[`...)
		for i, id := range ln.tokens {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendChatLogprob(b, id, *j.Logprobs)
		}
		b = append(b, "]}"...)
	}
	b = append(b, `,"finish_reason":`...)
	b = jsontext.AppendString(b, ln.finishReason(j))
	b = appendReason(append(b, `,"stop_reason":`...), ln.seq.Reason)
	b = append(b, `,"token_ids":`...)
	return append(appendMaybeInts(b, ln.tokens, j.ReturnTokenIDs), `,"routed_experts":null}`...)
}

func appendTextChoice(b []byte, j *job, ln *lane) []byte {
	ids := j.Prompts[ln.prompt]
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(ln.index), 10)
	b = append(b, `,"text":"`...)
	if j.Echo {
		b = jsontext.AppendText(b, j.Text(ln.prompt))
	}
	if !j.echoOnly {
		b = jsontext.AppendText(b, ln.seq.Text)
	}
	b = append(b, `","logprobs":`...)
	switch {
	case j.Logprobs == nil:
		b = append(b, "null"...)
	case j.echoOnly:
		b = appendTextLogprobs(b, ids, 1, 0)
	case j.Echo:
		b = appendTextLogprobs(b, append(append([]int(nil), ids...), ln.tokens...), 1, 0)
	default:
		b = appendTextLogprobs(b, ln.tokens, 0, 0)
	}
	b = append(b, `,"finish_reason":`...)
	b = jsontext.AppendString(b, ln.finishReason(j))
	b = appendReason(append(b, `,"stop_reason":`...), ln.seq.Reason)
	b = append(b, `,"token_ids":`...)
	b = appendMaybeInts(b, ln.tokens, j.ReturnTokenIDs)
	b = append(b, `,"prompt_logprobs":`...)
	b = appendPromptLogprobs(b, j, ln.prompt)
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
func appendPromptLogprobs(b []byte, j *job, prompt int) []byte {
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
