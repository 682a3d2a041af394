package answer

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

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

// Begin is when the prompt of a lane is computed.
func (n *NamedEvents) Begin(ln *Lane) {
	n.ln = ln
	n.form.began(n)
}

// End is behind the last token.
func (n *NamedEvents) End() {
	n.close()
	n.form.ended(n)
}

// Token says what the newest token of the lane adds.
func (n *NamedEvents) Token() {
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

// messagesForm is a stream of /v1/messages; the members of its events come in vLLM's
// order.
type messagesForm struct{}

// event writes an event whose members behind its type are given.
func (messagesForm) event(n *NamedEvents, name string, members ...string) {
	n.buf = fmt.Appendf(n.buf, "event: %s\ndata: {\"type\":\"%s\"%s}\n\n", name, name, strings.Join(members, ""))
}

func (messagesForm) accepted(*NamedEvents) {}

func (f messagesForm) began(n *NamedEvents) {
	f.event(n, "message_start", string(jsontext.Append(nil, `,"message":{"id":$,"type":"message","role":"assistant","content":[],"model":$,`+
		`"stop_reason":null,"stop_sequence":null,"usage":$}`, n.j.ID, n.j.ServedAs, raw(n.j.appendMessageUsage(nil, 0, false)))))
}

func (f messagesForm) opened(n *NamedEvents) {
	block := `{"type":"text","text":""}`
	switch n.open.kind {
	case kindThinking:
		block = `{"type":"thinking","thinking":""}`
	case kindCall:
		block = string(jsontext.Append(nil, `{"type":"tool_use","id":$,"name":$,"input":{}}`, n.open.id, n.open.name))
	}
	f.event(n, "content_block_start", `,"content_block":`, block, f.index(n))
}

func (messagesForm) index(n *NamedEvents) string { return `,"index":` + strconv.Itoa(n.at) }

func (f messagesForm) added(n *NamedEvents, what string) {
	kind, text := "text_delta", "text"
	switch n.open.kind {
	case kindThinking:
		kind, text = "thinking_delta", "thinking"
	case kindCall:
		kind, text = "input_json_delta", "partial_json"
	}
	f.delta(n, kind, text, what)
}

func (f messagesForm) delta(n *NamedEvents, kind, member, text string) {
	f.event(n, "content_block_delta", `,"delta":{"type":"`, kind, `","`, member, `":`, string(jsontext.AppendString(nil, text)), `}`, f.index(n))
}

func (f messagesForm) closed(n *NamedEvents) {
	if n.open.kind == kindThinking {
		f.delta(n, "signature_delta", "signature", n.j.signature(n.at))
	}
	f.event(n, "content_block_stop", f.index(n))
}

func (f messagesForm) ended(n *NamedEvents) {
	stop := "null"
	if reason := n.j.stopReason(n.ln); reason != "" {
		stop = strconv.Quote(reason)
	}
	f.event(n, "message_delta", `,"delta":{"stop_reason":`, stop, `,"stop_sequence":null},"usage":`, string(n.j.appendMessageUsage(nil, n.ln.Seq.N, n.j.Details)))
	f.event(n, "message_stop")
}

// responsesForm is a stream of /v1/responses; the members of its events come in vLLM's
// order.
type responsesForm struct{}

// event writes an event of these members; sequence_number follows them, and in
// front of last.
func (responsesForm) event(n *NamedEvents, name, last string, members ...string) {
	n.buf = fmt.Appendf(n.buf, "event: %s\ndata: {%s,\"sequence_number\":%d%s,\"type\":\"%s\"", name, strings.Join(members, ""), n.seq, last, name)
	if name == argumentsDone {
		n.buf = jsontext.AppendString(append(n.buf, `,"name":`...), n.open.name)
	}
	n.buf = append(n.buf, "}\n\n"...)
	n.seq++
}

// response is an event that holds the whole response object.
func (f responsesForm) response(n *NamedEvents, name, status string) {
	f.event(n, name, "", `"response":`, string(n.j.AppendResponse(nil, n.ln, status)), `}`)
}

func (f responsesForm) accepted(n *NamedEvents) {
	f.response(n, "response.created", "in_progress")
	f.response(n, "response.in_progress", "in_progress")
}

func (responsesForm) began(*NamedEvents) {}

// item is an event about the whole of n.open.
func (f responsesForm) item(n *NamedEvents, name, status string) {
	f.event(n, name, "", `"item":`, string(n.j.appendItem(nil, n.at, n.open, status)), `,"output_index":`, strconv.Itoa(n.at))
}

// place says which item an event is about.
func (responsesForm) place(n *NamedEvents) (item, index string) {
	return `"item_id":` + string(jsontext.AppendString(nil, n.j.itemID(n.at, n.open.kind))), `,"output_index":` + strconv.Itoa(n.at)
}

const (
	firstContent  = `"content_index":0,`
	argumentsDone = "response.function_call_arguments.done"
)

// content is an event about the content of n.open.
func (f responsesForm) content(n *NamedEvents, name string, logprobs jsontext.Raw) {
	item, index := f.place(n)
	f.event(n, name, "", firstContent, item, index, `,"part":`, string(appendContentPart(nil, n.open, logprobs)))
}

func (f responsesForm) opened(n *NamedEvents) {
	f.item(n, "response.output_item.added", "in_progress")
	if n.open.kind != kindCall {
		f.content(n, "response.content_part.added", jsontext.Raw("[]"))
	}
}

func (f responsesForm) added(n *NamedEvents, what string) {
	item, index := f.place(n)
	delta := `"delta":` + string(jsontext.AppendString(nil, what)) + `,`
	switch n.open.kind {
	case kindCall:
		f.event(n, "response.function_call_arguments.delta", "", delta, item, index)
	case kindThinking:
		f.event(n, "response.reasoning_text.delta", "", firstContent, delta, item, index)
	default:
		f.event(n, "response.output_text.delta", "", firstContent, delta, item, `,"logprobs":[]`, index)
	}
}

func (f responsesForm) closed(n *NamedEvents) {
	item, index := f.place(n)
	text := string(jsontext.AppendString(nil, n.open.text))
	switch n.open.kind {
	case kindCall:
		f.event(n, argumentsDone, "", `"arguments":`, text, `,`, item, index)
	case kindThinking:
		f.event(n, "response.reasoning_text.done", `,"text":`+text, firstContent, item, index)
	default:
		f.event(n, "response.output_text.done", `,"text":`+text, firstContent, item, `,"logprobs":[]`, index)
	}
	if n.open.kind != kindCall {
		f.content(n, "response.content_part.done", nil)
	}
	f.item(n, "response.output_item.done", "completed")
}

func (f responsesForm) ended(n *NamedEvents) { f.response(n, "response.completed", "") }
