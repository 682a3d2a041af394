package answer

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
)

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
