package answer

import "github.com/pdmesh/pdmesh/sim/fakevllm/request"

// NamedEvents writes the named events of a stream of one of the two agents' APIs.
type NamedEvents struct {
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
	accepted(*NamedEvents)             // before anything is computed
	began(*NamedEvents)                // the prompt is computed
	opened(*NamedEvents)               // the deltas that follow are of n.open
	added(n *NamedEvents, what string) // one more token with text
	closed(*NamedEvents)               // n.open is whole
	ended(*NamedEvents)
}

// NewNamedEvents begins a stream.
func NewNamedEvents(j *Reply) *NamedEvents {
	if j.API == request.Responses {
		return &NamedEvents{j: j, form: responsesForm{}}
	}
	return &NamedEvents{j: j, form: messagesForm{}}
}

// Take returns the events that were not taken yet. They are good until the next call.
func (n *NamedEvents) Take() []byte {
	b := n.buf
	n.buf = n.buf[:0]
	return b
}

// Accept is the beginning, before anything is computed.
func (n *NamedEvents) Accept() { n.form.accepted(n) }

// Begin is when the prompt is computed.
func (n *NamedEvents) Begin() { n.form.began(n) }

// Abort notes that a lane ends before its first token.
func (n *NamedEvents) Abort(ln *Lane) { n.ln = ln }

// End is behind the last token.
func (n *NamedEvents) End() {
	n.close()
	n.form.ended(n)
}

// Token says what the newest token of a lane adds.
func (n *NamedEvents) Token(ln *Lane) {
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

func (n *NamedEvents) close() {
	if n.open.kind != kindNone {
		n.open.text = n.ln.said()[n.at].text
		n.form.closed(n)
		n.open = part{}
	}
}
