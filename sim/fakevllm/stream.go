package fakevllm

import (
	"net/http"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// stream answers with events: 200 at once, as vLLM does, before anything is
// computed; then one event per token.
func (x *exchange) stream(j *job) {
	x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	x.w.WriteHeader(http.StatusOK)
	x.streaming = true
	x.flush()
	if x.strike(fault.AfterHeaders, 0) {
		return
	}
	if j.API == request.Responses || j.API == request.Messages {
		x.agentStream(j)
		return
	}
	if j.API == request.Generate {
		x.streamIDs(j)
		return
	}
	p, ok := x.first(j)
	if !ok {
		x.gone()
		return
	}
	head := j.ChunkHead()
	buf := make([]byte, 0, 1024)
	if j.Chat {
		for i := range j.N {
			buf = j.AppendRole(buf[:0], head, i)
			if !x.write(buf) {
				x.gone()
				return
			}
		}
	}
	if x.strike(fault.AfterRole, 0) {
		return
	}
	if j.loadErr != nil {
		// vLLM finds the failed load out with the first result: behind the
		// role chunk, inside the 200.
		x.core.stats.Fail.Add(1)
		x.fail(pydantic.InternalError())
		return
	}
	lanes := j.Lanes(false)
	for i := range lanes {
		lanes[i].Begin(&j.Reply, head)
	}
	if !x.streamTokens(j, lanes, &p, buf) {
		return
	}
	x.offer(j, lanes[0].Seq.Finish)
	x.endStream(j, lanes, head, buf)
}

// streamTokens is the loop that benchmarks live in: no allocation per token.
func (x *exchange) streamTokens(j *job, lanes []answer.Lane, p *pace, buf []byte) (ok bool) {
	open := len(lanes)
	for round := 1; open > 0; round++ {
		if round > 1 && !x.tick(p) {
			x.gone()
			return false
		}
		for i := range lanes {
			ln := &lanes[i]
			if ln.Seq.Finish != "" {
				continue
			}
			id, text := ln.Step()
			x.generated(ln, id)
			if ln.Seq.Finish != "" && ln.Index == 0 && x.life.server.opt.Bidirectional {
				x.handOver(j, ln.Seq.Finish)
			}
			buf = j.AppendEvent(buf[:0], ln, id, text, round == 1)
			if ln.Seq.Finish != "" {
				open--
				x.core.finished(ln.Seq.Finish)
			}
			if !x.write(buf) {
				x.gone()
				return false
			}
		}
		if x.strike(fault.AfterTokens, round) {
			return false
		}
	}
	return true
}

func (x *exchange) endStream(j *job, lanes []answer.Lane, head, buf []byte) {
	buf = buf[:0]
	if j.IncludeUsage {
		prompt, completion := 0, 0
		for _, ids := range j.Prompts {
			prompt += len(ids)
		}
		for i := range lanes {
			completion += lanes[i].Seq.N
		}
		// head ends in the beginning of a choice; this event has none.
		buf = append(buf, head[:len(head)-len(`{"index":`)]...)
		buf = append(buf, `],"usage":`...)
		buf = j.AppendUsage(buf, prompt, completion, true, false)
		buf = append(buf, "}\n\n"...)
		if !x.write(buf) {
			x.gone()
			return
		}
	}
	if !x.write([]byte("data: [DONE]\n\n")) {
		x.gone()
		return
	}
	x.completed()
}
