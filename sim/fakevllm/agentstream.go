package fakevllm

import (
	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// agentStream answers with named events: 200 at once, then what says nothing yet, then
// one event for each token that has text.
func (x *exchange) agentStream(j *job) {
	n := answer.NewNamedEvents(&j.Reply)
	flush := func() bool {
		b := n.Take()
		ok := len(b) == 0 || x.write(b)
		if !ok {
			x.gone()
		}
		return ok
	}
	if n.Accept(); !flush() {
		return
	}
	p, ok := x.first(j)
	if !ok {
		x.gone()
		return
	}
	if n.Begin(); !flush() || x.strike(fault.AfterRole, 0) {
		return
	}
	if j.loadErr != nil {
		x.core.stats.Fail.Add(1)
		x.fail(pydantic.InternalError())
		return
	}
	lanes := j.Lanes(true)
	ln := &lanes[0]
	for round := 1; ln.Seq.Finish == ""; round++ {
		if round > 1 && !x.tick(&p) {
			x.gone()
			return
		}
		id, _ := ln.Step()
		x.generated(ln, id)
		n.Token(ln)
		if !flush() || x.strike(fault.AfterTokens, round) {
			return
		}
	}
	x.core.finished(ln.Seq.Finish)
	x.offer(j, ln.Seq.Finish)
	n.End()
	j.keep(ln, append(j.AppendResponse(nil, ln, ""), '}'))
	if flush() {
		x.completed()
	}
}
