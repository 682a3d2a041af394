package fakevllm

import (
	"net/http"
	"strconv"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// stream answers with events: 200 at once, as vLLM does, before anything is
// computed; then one event per token.
func (g *generation) stream() {
	if !g.streaming {
		g.beginStream()
	}
	if g.strike(AfterHeaders, 0) {
		return
	}
	if g.API == request.Responses || g.API == request.Messages {
		g.agentStream()
		return
	}
	if g.API == request.Generate {
		g.streamIDs()
		return
	}
	if !g.first() {
		g.abandon()
		return
	}
	head := g.ChunkHead()
	buf := make([]byte, 0, 1024)
	if g.Chat {
		for i := range g.N {
			buf = g.AppendRole(buf[:0], head, i)
			if !g.emit(buf) {
				return
			}
		}
	}
	if g.strike(AfterRole, 0) {
		return
	}
	// vLLM finds a failed load out with the first result: behind the
	// role chunk, inside the 200.
	if g.loadFailed() {
		return
	}
	lanes := g.Lanes(g.Interval > 1 || g.Chat && (g.Model.Reasoning != "" || g.Model.Tools != ""))
	for i := range lanes {
		lanes[i].Begin(&g.Reply, head)
	}
	ok := g.generateTokens(lanes, func(ln *answer.Lane, id int, text bool) bool {
		ended := ln.Seq.Finish != ""
		if ended && ln.Index == 0 && g.life.server.opt.Bidirectional {
			g.leg.End(&g.kv, ln.Seq.Finish, true)
		}
		buf = g.AppendEvent(buf[:0], ln, id, text)
		if ended {
			g.work.Core.Finished(ln.Seq.Finish)
		}
		return len(buf) == 0 || g.emit(buf)
	})
	if !ok {
		return
	}
	g.leg.End(&g.kv, lanes[0].Seq.Finish, false)
	g.endStream(lanes, head, buf)
}

// agentStream answers with named events: 200 at once, then what says nothing yet, then
// one event for each token that has text.
func (g *generation) agentStream() {
	n := answer.NewNamedEvents(&g.Reply)
	flush := func() bool {
		b := n.Take()
		return len(b) == 0 || g.emit(b)
	}
	if n.Accept(); !flush() {
		return
	}
	if !g.first() {
		g.abandon()
		return
	}
	lanes := g.Lanes(true)
	ln := &lanes[0]
	if n.Begin(ln); !flush() {
		return
	}
	if !g.streamLane(lanes, func(int) bool { n.Token(); return flush() }) {
		return
	}
	g.work.Core.Finished(ln.Seq.Finish)
	g.leg.End(&g.kv, ln.Seq.Finish, false)
	n.End()
	g.life.responses.Keep(&g.Reply, ln, append(g.AppendResponse(nil, ln, ""), '}'))
	if flush() {
		g.completed()
	}
}

// streamLane generates the only answer of a stream, and calls show for each token. It returns
// false if the stream is over. A fault may set the finish reason abort.
func (g *generation) streamLane(lanes []answer.Lane, show func(id int) bool) bool {
	if g.aborts(AfterRole, 0) {
		lanes[0].Seq.Finish = abort
		return true
	}
	if g.strike(AfterRole, 0) || g.loadFailed() {
		return false
	}
	return g.generateTokens(lanes, func(_ *answer.Lane, id int, _ bool) bool { return show(id) })
}

// streamIDs answers on /inference/v1/generate, with one event for each token.
func (g *generation) streamIDs() {
	if !g.first() {
		g.abandon()
		return
	}
	lanes := g.Lanes(true)
	ln := &lanes[0]
	head := jsontext.AppendString([]byte(`data: {"request_id":`), g.ID)
	ok := g.streamLane(lanes, func(id int) bool {
		b := append(append([]byte(nil), head...), `,"usage":null`...)
		if ln.Seq.N == 1 && g.ReturnTokenIDs {
			b = jsontext.AppendInts(append(b, `,"prompt_token_ids":`...), g.Prompts[0])
		}
		b = append(b, `,"output_mode":"tokens","choices":[`...)
		return g.emit(append(answer.AppendTokenChoice(b, ln, []int{id}, ln.Seq.Finish), "]}\n\n"...))
	})
	if !ok {
		return
	}
	if ln.Seq.Finish == abort { // vLLM before 0.32 leaves this chunk without tokens out
		b := append(append([]byte(nil), head...), `,"usage":null,"output_mode":"tokens","choices":[`...)
		g.write(append(answer.AppendTokenChoice(b, ln, nil, abort), "]}\n\ndata: [DONE]\n\n"...))
		return
	}
	g.work.Core.Finished(ln.Seq.Finish)
	g.leg.End(&g.kv, ln.Seq.Finish, false)
	var b []byte
	if g.IncludeUsage {
		b = append(append(b, head...), `,"usage":`...)
		b = g.AppendUsage(b, len(g.Prompts[0]), ln.Seq.N, 0, true, false)
		b = append(b, `,"output_mode":"tokens","choices":[]}`+"\n\n"...)
	}
	if g.write(append(b, "data: [DONE]\n\n"...)) {
		g.completed()
	}
}

// generateTokens generates the tokens of all lanes in turn, at the engine's pace, and calls show for
// each of them, until all lanes have ended. It returns false if the request has ended earlier.
// Benchmarks spend their time in it: it does not allocate for a token.
func (g *generation) generateTokens(lanes []answer.Lane, show func(ln *answer.Lane, id int, text bool) bool) bool {
	for round := 0; ; round++ {
		open := false
		for i := range lanes {
			ln := &lanes[i]
			if ln.Seq.Finish != "" {
				continue
			}
			if round > 0 && !open && !g.work.Tick() {
				g.abandon()
				return false
			}
			open = true
			id, text := ln.Step()
			g.work.Generated(ln.Index, id)
			if !show(ln, id, text) {
				return false
			}
		}
		switch {
		case !open:
			return true
		case !g.streaming:
		case g.API != request.Completions && g.API != request.Chat && g.aborts(AfterTokens, round+1):
			lanes[0].Seq.Finish = abort
		case g.strike(AfterTokens, round+1):
			return false
		}
	}
}

func (g *generation) endStream(lanes []answer.Lane, head, buf []byte) {
	buf = buf[:0]
	if g.IncludeUsage {
		// head ends in the beginning of a choice; this event has none.
		buf = append(buf, head[:len(head)-len(`{"index":`)]...)
		buf = append(buf, `],"usage":`...)
		buf = g.AppendTotals(buf, lanes, false)
		buf = append(buf, "}\n\n"...)
		if !g.emit(buf) {
			return
		}
	}
	if !g.emit([]byte("data: [DONE]\n\n")) {
		return
	}
	g.completed()
}

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
	for i := range lanes {
		if f := g.fault; f != nil && f.Kind == FaultAbort && f.At == AfterTokens {
			lanes[i].Seq.Finish = abort
		}
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
			return pydantic.BadRequest("", "1 validation error for list[FunctionDefinition]: Invalid JSON: EOF while parsing a list at line 1 column 1")
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
