package fakevllm

import (
	"net/http"
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
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
	lanes := j.Lanes(true)
	if !x.generate(j, lanes, &p) {
		x.gone()
		return
	}
	for i := range lanes {
		x.core.finished(lanes[i].Seq.Finish)
	}
	if e := x.checkCalls(lanes); e != nil {
		x.reject(e)
		return
	}
	x.handOver(j, lanes[0].Seq.Finish)
	switch j.API {
	case request.Responses, request.Messages:
		body := j.AgentBody(&lanes[0])
		j.keep(&lanes[0], body)
		x.send(body)
		return
	case request.Generate:
		x.send(j.TokensBody(lanes))
		return
	case request.Completions, request.Chat:
	}
	x.send(j.Body(lanes))
}

// generate runs all lanes to their end, at the engine's pace.
func (x *exchange) generate(j *job, lanes []answer.Lane, p *pace) bool {
	keepIDs := j.ReturnTokenIDs || j.Logprobs != nil || j.API == request.Generate
	open := len(lanes)
	for round := 1; open > 0; round++ {
		if round > 1 && (p.itl > 0 || round%1024 == 0) && !x.tick(p) {
			return false
		}
		for i := range lanes {
			ln := &lanes[i]
			if ln.Seq.Finish != "" {
				continue
			}
			id, _ := ln.Step()
			x.generated(ln, id)
			if keepIDs {
				ln.Tokens = append(ln.Tokens, id)
			}
			if ln.Seq.Finish != "" {
				open--
			}
		}
	}
	return x.alive()
}

// checkCalls refuses a required call that was cut short, as vLLM does when it
// cannot parse what there is.
func (x *exchange) checkCalls(lanes []answer.Lane) *pydantic.Error {
	if x.life.server.opt.AllowCutToolCalls {
		return nil
	}
	for i := range lanes {
		if lanes[i].Calling() && lanes[i].Seq.Finish == "length" {
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
