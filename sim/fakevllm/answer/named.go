package answer

import "github.com/pdmesh/pdmesh/sim/fakevllm/request"

// named writes the named events of a stream of one of the two agents' APIs.
type named struct {
	j    *Reply
	ln   *Lane
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

// NewNamed begins a stream.
func NewNamed(j *Reply) *named {
	if j.API == request.Responses {
		return &named{j: j, form: responsesForm{}}
	}
	return &named{j: j, form: messagesForm{}}
}

// Take gives the events that were not taken yet. They are good until the next call.
func (n *named) Take() []byte {
	b := n.buf
	n.buf = n.buf[:0]
	return b
}

// Accept is the beginning, before anything is computed.
func (n *named) Accept() { n.form.accepted(n) }

// Begin is when the prompt is computed.
func (n *named) Begin() { n.form.began(n) }

// End is behind the last token.
func (n *named) End() {
	n.close()
	n.form.ended(n)
}

// Token says what the newest token of a lane adds.
func (n *named) Token(ln *Lane) {
	n.ln = ln
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
