package fakevllm

import "strconv"

// named writes the named events of a stream of one of the two agents' APIs.
type named struct {
	x   *exchange
	j   *job
	ln  *lane
	buf []byte
	seq int // sequence_number of the next event of /v1/responses
}

// begin starts an event; its data goes on behind its type.
func (n *named) begin(name string) {
	n.buf = append(append(n.buf, "event: "...), name...)
	n.buf = append(append(n.buf, "\ndata: {\"type\":\""...), name...)
	n.buf = append(n.buf, '"')
	if n.j.api == apiResponses {
		n.buf = strconv.AppendInt(append(n.buf, `,"sequence_number":`...), int64(n.seq), 10)
		n.seq++
	}
}

func (n *named) end() { n.buf = append(n.buf, "}\n\n"...) }

// event is begin, text and end.
func (n *named) event(name, text string) {
	n.begin(name)
	n.buf = append(n.buf, text...)
	n.end()
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
	n := &named{x: x, j: j}
	if j.api == apiResponses { // before anything is computed
		n.response("response.created", "in_progress")
		n.response("response.in_progress", "in_progress")
		if !n.flush() {
			return
		}
	}
	p, ok := x.first(j)
	if !ok {
		x.gone()
		return
	}
	if j.api == apiMessages {
		n.begin("message_start")
		n.buf = appendJSONString(append(n.buf, `,"message":{"id":`...), j.id)
		n.buf = appendJSONString(append(n.buf, `,"type":"message","role":"assistant","content":[],"model":`...), j.model)
		n.buf = append(n.buf, `,"stop_reason":null,"stop_sequence":null,"usage":`...)
		n.buf = append(j.appendMessageUsage(n.buf, 0, false), '}')
		n.end()
	}
	if !n.flush() || x.strike(AfterRole, 0) {
		return
	}
	if j.loadErr != nil {
		x.life.stats.fail.Add(1)
		x.fail(internalError())
		return
	}
	lanes := j.lanes(true)
	n.ln = &lanes[0]
	for round, said := 1, false; n.ln.seq.finish == ""; round++ {
		if round > 1 && !x.tick(&p) {
			x.gone()
			return
		}
		n.ln.step()
		x.life.generated(1)
		if text := n.delta(); text != "" {
			if !said {
				n.open()
			}
			said = true
			n.token(text)
		}
		if !n.flush() || x.strike(AfterTokens, round) {
			return
		}
	}
	x.life.finished(n.ln.seq.finish)
	x.offer(j, n.ln.seq.finish)
	n.close()
	j.keep(n.ln, append(j.appendResponse(nil, n.ln, ""), '}'))
	if n.flush() {
		x.completed()
	}
}

// delta is what the newest token adds: to the text, or to a call's arguments.
func (n *named) delta() string {
	if c := n.ln.call; c != nil {
		if i := n.ln.seq.n - 2; i >= 0 && i < len(c.parts) {
			return c.parts[i]
		}
		return ""
	}
	return string(n.ln.seq.delta())
}

// response is an event that holds the whole response object.
func (n *named) response(name, status string) {
	n.begin(name)
	n.buf = append(n.j.appendResponse(append(n.buf, `,"response":`...), n.ln, status), '}')
	n.end()
}

// open says what the deltas that follow are of.
func (n *named) open() {
	if n.j.api == apiMessages {
		n.begin("content_block_start")
		n.buf = append(n.buf, `,"index":0,"content_block":`...)
		if c := n.ln.call; c != nil {
			n.buf = appendJSONString(append(n.buf, `{"type":"tool_use","id":`...), c.id)
			n.buf = append(appendJSONString(append(n.buf, `,"name":`...), c.name), `,"input":{}}`...)
		} else {
			n.buf = append(n.buf, `{"type":"text","text":""}`...)
		}
		n.end()
		return
	}
	n.begin("response.output_item.added")
	n.buf = n.j.appendItem(append(n.buf, `,"output_index":0,"item":`...), &lane{call: n.ln.call}, "in_progress")
	n.end()
	if n.ln.call == nil {
		n.event("response.content_part.added", n.place()+`,"content_index":0,"part":{"annotations":[],"text":"","type":"output_text","logprobs":[]}`)
	}
}

// place says which item of a response an event is about.
func (n *named) place() string {
	if n.ln.call != nil {
		return `,"output_index":0,"item_id":"fc_` + n.j.base + `"`
	}
	return `,"output_index":0,"item_id":"msg_` + n.j.base + `"`
}

func (n *named) token(text string) {
	call := n.ln.call != nil
	switch {
	case n.j.api == apiMessages && call:
		n.begin("content_block_delta")
		n.buf = append(appendJSONString(append(n.buf, `,"index":0,"delta":{"type":"input_json_delta","partial_json":`...), text), '}')
	case n.j.api == apiMessages:
		n.begin("content_block_delta")
		n.buf = append(appendJSONString(append(n.buf, `,"index":0,"delta":{"type":"text_delta","text":`...), text), '}')
	case call:
		n.begin("response.function_call_arguments.delta")
		n.buf = appendJSONString(append(append(n.buf, n.place()...), `,"delta":`...), text)
	default:
		n.begin("response.output_text.delta")
		n.buf = append(appendJSONString(append(append(n.buf, n.place()...), `,"content_index":0,"delta":`...), text), `,"logprobs":[]`...)
	}
	n.end()
}

// close ends the answer.
func (n *named) close() {
	if n.j.api == apiMessages {
		n.event("content_block_stop", `,"index":0`)
		n.begin("message_delta")
		n.buf = append(appendJSONString(append(n.buf, `,"delta":{"stop_reason":`...), n.j.stopReason(n.ln)), `},"usage":`...)
		n.buf = n.j.appendMessageUsage(n.buf, n.ln.seq.n, true)
		n.end()
		n.event("message_stop", "")
		return
	}
	if n.ln.call == nil {
		n.begin("response.output_text.done")
		n.buf = append(append(n.buf, n.place()...), `,"content_index":0,"logprobs":[],"text":"`...)
		n.buf = append(appendJSONText(n.buf, n.ln.seq.text), '"')
		n.end()
	}
	n.begin("response.output_item.done")
	n.buf = n.j.appendItem(append(n.buf, `,"output_index":0,"item":`...), n.ln, "completed")
	n.end()
	n.response("response.completed", "")
}
