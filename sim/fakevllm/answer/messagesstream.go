package answer

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
)

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
