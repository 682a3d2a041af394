package fakevllm

import (
	"net/http"
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// abort is the finish reason of a request that the engine gave up.
const abort = "abort"

// respond answers in one piece.
func (g *generation) respond() {
	if !g.first() {
		g.abandon()
		return
	}
	if g.loadFailed() {
		return
	}
	lanes := g.Lanes(true)
	if g.aborts(AfterRole, 0) && g.API != request.Completions && g.API != request.Chat {
		for i := range lanes {
			lanes[i].Seq.Finish = abort
		}
	}
	keepIDs := g.ReturnTokenIDs || g.Logprobs != nil || g.API == request.Generate || g.Model.Reasoning != ""
	ok := g.generateTokens(lanes, func(ln *answer.Lane, id int, _ bool) bool {
		if keepIDs {
			ln.Tokens = append(ln.Tokens, id)
		}
		return true
	})
	switch {
	case !ok:
		return
	case !g.lifetime.Alive():
		g.abandon()
		return
	}
	if f := g.fault; f != nil && f.Kind == FaultAbort && f.At == AfterTokens {
		for i := range lanes {
			lanes[i].Seq.Finish = abort
		}
	}
	for i := range lanes {
		g.work.Core.Finished(lanes[i].Seq.Finish)
	}
	if e := g.checkCalls(lanes); e != nil {
		g.refuse(e)
		return
	}
	g.leg.End(&g.kv, lanes[0].Seq.Finish, true)
	switch g.API {
	case request.Responses, request.Messages:
		body := g.AgentBody(&lanes[0])
		g.life.responses.Keep(&g.Reply, &lanes[0], body)
		g.send(body)
		return
	case request.Generate:
		g.send(g.TokensBody(lanes))
		return
	case request.Completions, request.Chat:
	}
	g.send(g.Body(lanes))
}

// checkCalls refuses a required call that was cut short, as vLLM does when it
// cannot parse what there is.
func (g *generation) checkCalls(lanes []answer.Lane) *pydantic.Error {
	for i := range lanes {
		if lanes[i].Calling() && lanes[i].Seq.Finish == "length" {
			if g.api == request.Messages {
				return &pydantic.Error{Status: http.StatusInternalServerError, Kind: "internal_error", Message: "Expecting value: line 1 column 1 (char 0)"}
			}
			return cutCall()
		}
	}
	return nil
}

// send writes the whole body, or as much as a fault lets out.
func (g *generation) send(body []byte) {
	f := g.fault
	aborted := f != nil && f.Kind == FaultAbort && (f.At == AfterTokens || g.API != request.Completions && g.API != request.Chat)
	if f == nil || f.At == BeforeRead || f.At == AfterRead || aborted {
		pydantic.WriteJSON(g.w, http.StatusOK, body)
		g.completed()
		return
	}
	if f.Kind == FaultErrorEvent {
		g.fail(pydantic.InternalError())
		return
	}
	if f.Ends() && g.strike(AfterRole, 0) {
		return
	}
	h := g.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	g.w.WriteHeader(http.StatusOK)
	g.streaming = true
	g.flush()
	if g.strike(AfterHeaders, 0) || g.strike(AfterRole, 0) {
		return
	}
	half := len(body) / 2
	if g.write(body[:half]) && g.strike(AfterTokens, f.Tokens) {
		return
	}
	if g.write(body[half:]) {
		g.completed()
	}
}

// cutCall is the answer to a required tool call that ended in its middle: what
// there is of it does not parse.
func cutCall() *pydantic.Error {
	return pydantic.BadRequest("", "1 validation error for list[FunctionDefinition]: Invalid JSON: EOF while parsing a list at line 1 column 1")
}
