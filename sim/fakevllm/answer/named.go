package answer

import (
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// NamedEvents writes the named events of a stream of one of the two agents' APIs. The members of
// events come in vLLM's order.
type NamedEvents struct {
	j    *Reply
	ln   *Lane
	buf  []byte
	seq  int  // sequence_number of the next event of /v1/responses
	open part // what the deltas are of, with its text once it is whole; without kind none
	at   int  // index of open
}

// NewNamedEvents begins a stream.
func NewNamedEvents(j *Reply) *NamedEvents { return &NamedEvents{j: j} }

// Take returns the events that were not taken yet. They are good until the next call.
func (n *NamedEvents) Take() []byte {
	b := n.buf
	n.buf = n.buf[:0]
	return b
}

// responses reports whether the stream is one of /v1/responses.
func (n *NamedEvents) responses() bool { return n.j.API == request.Responses }

// message writes an event of /v1/messages with the members after its type.
func (n *NamedEvents) message(name, members string, args ...any) {
	n.buf = jsontext.Append(append(n.buf, "event: "+name+"\ndata: {\"type\":\""+name...), `"`+members+"}\n\n", args...)
}

// response writes an event of /v1/responses. Its number, which is # in the members, and its type
// follow the members that have neither.
func (n *NamedEvents) response(name, members string, args ...any) {
	if !strings.Contains(members, "#") {
		members += `,"sequence_number":#`
	}
	if !strings.Contains(members, `"type"`) {
		members += `,"type":"` + name + `"`
	}
	members = strings.Replace(members, "#", strconv.Itoa(n.seq), 1)
	n.buf = jsontext.Append(append(n.buf, "event: "+name+"\ndata: {"...), members+"}\n\n", args...)
	n.seq++
}

// state writes an event that holds the whole response object.
func (n *NamedEvents) state(name, status string) {
	n.response(name, `"response":$}`, raw(n.j.AppendResponse(nil, n.ln, status)))
}

// Accept is the beginning, before anything is computed.
func (n *NamedEvents) Accept() {
	if n.responses() {
		n.state("response.created", "in_progress")
		n.state("response.in_progress", "in_progress")
	}
}

// Begin is when the prompt of a lane is computed.
func (n *NamedEvents) Begin(ln *Lane) {
	if n.ln = ln; !n.responses() {
		n.message("message_start", `,"message":{"id":$,"type":"message","role":"assistant","content":[],"model":$,"stop_reason":null,"stop_sequence":null,"usage":$}`,
			n.j.ID, n.j.ServedAs, raw(n.j.appendMessageUsage(nil, 0, false)))
	}
}

// End is behind the last token.
func (n *NamedEvents) End() {
	n.close()
	if n.responses() {
		n.state("response.completed", "")
		return
	}
	var stop any
	if reason := n.j.stopReason(n.ln); reason != "" {
		stop = reason
	}
	n.message("message_delta", `,"delta":{"stop_reason":$,"stop_sequence":null},"usage":$`, stop, raw(n.j.appendMessageUsage(nil, n.ln.Seq.N, n.j.Details)))
	n.message("message_stop", "")
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
		n.begin()
	}
	if p.text != "" {
		n.add(p.text)
	}
}

// begin is before the deltas of n.open.
func (n *NamedEvents) begin() {
	if n.responses() {
		n.item("response.output_item.added", "in_progress")
		n.content("response.content_part.added", jsontext.Raw("[]"))
		return
	}
	block := []byte(`{"type":"text","text":""}`)
	switch n.open.kind {
	case kindThinking:
		block = []byte(`{"type":"thinking","thinking":""}`)
	case kindCall:
		block = jsontext.Append(nil, `{"type":"tool_use","id":$,"name":$,"input":{}}`, n.open.id, n.open.name)
	}
	n.message("content_block_start", `,"content_block":$,"index":$`, raw(block), n.at)
}

// item is an event about the whole of n.open.
func (n *NamedEvents) item(name, status string) {
	n.response(name, `"item":$,"output_index":$`, raw(n.j.appendItem(nil, n.at, n.open, status)), n.at)
}

// content is an event about the content of n.open, which a call does not have.
func (n *NamedEvents) content(name string, logprobs jsontext.Raw) {
	if n.open.kind != kindCall {
		n.response(name, `"content_index":0,"item_id":$,"output_index":$,"part":$`, n.j.itemID(n.at, n.open.kind), n.at, raw(appendContentPart(nil, n.open, logprobs)))
	}
}

// add is one more token with text.
func (n *NamedEvents) add(text string) {
	id := n.j.itemID(n.at, n.open.kind)
	switch kind := n.open.kind; {
	case n.responses() && kind == kindCall:
		n.response("response.function_call_arguments.delta", `"delta":$,"item_id":$,"output_index":$`, text, id, n.at)
	case n.responses() && kind == kindThinking:
		n.response("response.reasoning_text.delta", `"content_index":0,"delta":$,"item_id":$,"output_index":$`, text, id, n.at)
	case n.responses():
		n.response("response.output_text.delta", `"content_index":0,"delta":$,"item_id":$,"logprobs":[],"output_index":$`, text, id, n.at)
	case kind == kindCall:
		n.delta("input_json_delta", "partial_json", text)
	case kind == kindThinking:
		n.delta("thinking_delta", "thinking", text)
	default:
		n.delta("text_delta", "text", text)
	}
}

func (n *NamedEvents) delta(kind, member, text string) {
	n.message("content_block_delta", `,"delta":{"type":$,$:$},"index":$`, kind, member, text, n.at)
}

// close is when n.open is whole.
func (n *NamedEvents) close() {
	if n.open.kind == kindNone {
		return
	}
	n.open.text = n.ln.said()[n.at].text
	id, text, kind := n.j.itemID(n.at, n.open.kind), n.open.text, n.open.kind
	if n.responses() {
		switch kind {
		case kindCall:
			n.response("response.function_call_arguments.done", `"arguments":$,"item_id":$,"output_index":$,"sequence_number":#,`+
				`"type":"response.function_call_arguments.done","name":$`, text, id, n.at, n.open.name)
		case kindThinking:
			n.response("response.reasoning_text.done", `"content_index":0,"item_id":$,"output_index":$,"sequence_number":#,"text":$`, id, n.at, text)
		default:
			n.response("response.output_text.done", `"content_index":0,"item_id":$,"logprobs":[],"output_index":$,"sequence_number":#,"text":$`, id, n.at, text)
		}
		n.content("response.content_part.done", nil)
		n.item("response.output_item.done", "completed")
	} else {
		if kind == kindThinking {
			n.delta("signature_delta", "signature", n.j.signature(n.at))
		}
		n.message("content_block_stop", `,"index":$`, n.at)
	}
	n.open = part{}
}
