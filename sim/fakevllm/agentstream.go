package fakevllm

import (
	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// agentStream answers with named events: 200 at once, then what says nothing yet, then
// one event for each token that has text.
func (x *exchange) agentStream(j *job) {
	n := newNamed(&j.reply)
	flush := func() bool {
		b := n.take()
		ok := len(b) == 0 || x.write(b)
		if !ok {
			x.gone()
		}
		return ok
	}
	if n.accept(); !flush() {
		return
	}
	p, ok := x.first(j)
	if !ok {
		x.gone()
		return
	}
	if n.begin(); !flush() || x.strike(fault.AfterRole, 0) {
		return
	}
	if j.loadErr != nil {
		x.core.stats.Fail.Add(1)
		x.fail(pydantic.InternalError())
		return
	}
	lanes := j.lanes(true)
	ln := &lanes[0]
	for round := 1; ln.seq.Finish == ""; round++ {
		if round > 1 && !x.tick(&p) {
			x.gone()
			return
		}
		id, _ := ln.step()
		x.generated(ln, id)
		n.token(ln)
		if !flush() || x.strike(fault.AfterTokens, round) {
			return
		}
	}
	x.core.finished(ln.seq.Finish)
	x.offer(j, ln.seq.Finish)
	n.end()
	j.keep(ln, append(j.appendResponse(nil, ln, ""), '}'))
	if flush() {
		x.completed()
	}
}
