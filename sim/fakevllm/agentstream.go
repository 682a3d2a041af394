package fakevllm

import (
	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// named writes the named events of a stream of one of the two agents' APIs.
type named struct {
	x    *exchange
	j    *job
	ln   *lane
	buf  []byte
	seq  int  // sequence_number of the next event of /v1/responses
	open part // what the deltas are of, with its text once it is whole; without kind none
	at   int  // index of open
	form streamForm
}

// streamForm is what the two APIs have of their own in a stream.
type streamForm interface {
	accepted(*named)             // before anything is computed
	began(*named)                // the prompt is computed
	opened(*named)               // the deltas that follow are of n.open
	added(n *named, what string) // one more token with text
	closed(*named)               // n.open is whole
	ended(*named)
}

// flush sends the events; false means that the client is gone.
func (n *named) flush() bool {
	ok := len(n.buf) == 0 || n.x.write(n.buf)
	n.buf = n.buf[:0]
	if !ok {
		n.x.gone()
	}
	return ok
}

// agentStream answers with named events: 200 at once, then what says nothing yet, then
// one event for each token that has text.
func (x *exchange) agentStream(j *job) {
	n := &named{x: x, j: j, form: messagesForm{}}
	if j.API == request.Responses {
		n.form = responsesForm{}
	}
	if n.form.accepted(n); !n.flush() {
		return
	}
	p, ok := x.first(j)
	if !ok {
		x.gone()
		return
	}
	if n.form.began(n); !n.flush() || x.strike(fault.AfterRole, 0) {
		return
	}
	if j.loadErr != nil {
		x.core.stats.Fail.Add(1)
		x.fail(pydantic.InternalError())
		return
	}
	lanes := j.lanes(true)
	n.ln = &lanes[0]
	for round := 1; n.ln.seq.Finish == ""; round++ {
		if round > 1 && !x.tick(&p) {
			x.gone()
			return
		}
		id, _ := n.ln.step()
		x.generated(n.ln, id)
		n.token()
		if !n.flush() || x.strike(fault.AfterTokens, round) {
			return
		}
	}
	x.core.finished(n.ln.seq.Finish)
	x.offer(j, n.ln.seq.Finish)
	n.close()
	n.form.ended(n)
	j.keep(n.ln, append(j.appendResponse(nil, n.ln, ""), '}'))
	if n.flush() {
		x.completed()
	}
}

// token says what the newest token adds.
func (n *named) token() {
	p, index := n.ln.newest()
	if p.kind == kindNone {
		return
	}
	if n.open.kind == kindNone || index != n.at {
		n.close()
		n.open, n.at = p, index
		n.open.text = ""
		n.form.opened(n)
	}
	if p.text != "" {
		n.form.added(n, p.text)
	}
}

func (n *named) close() {
	if n.open.kind != kindNone {
		n.open.text = n.ln.said()[n.at].text
		n.form.closed(n)
		n.open = part{}
	}
}
