package fakevllm

import (
	"net"
	"net/http"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/conns"
	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// exchange is one request on its way through the engine.
type exchange struct {
	life    *life
	w       http.ResponseWriter
	flusher flusher
	r       *http.Request
	fault   *fault.Fault // nil for none
	timer   *time.Timer

	streaming bool // headers of an event stream are out
	broken    bool // a write failed: the client is gone
	counted   bool // the abort was counted
	placed    bool // runs, and holds a place among MaxRunning
	id        string
	api       request.API

	core  *core
	turn  bool            // it is this request's turn to be computed
	holds []*kvcache.Hold // one for each prompt, none without a cache
	hits  int             // tokens found in the cache
	last  int             // the last token generated
	kept  bool            // there is one
}

// strike lets the fault happen if it is its time; ended tells that the
// exchange is over.
func (x *exchange) strike(at fault.Stage, tokens int) (ended bool) {
	f := x.fault
	if f == nil || f.At != at || at == fault.AfterTokens && f.Tokens != tokens {
		return false
	}
	switch f.Kind {
	case fault.Status:
		x.status(f)
	case fault.Hang:
		if at != fault.BeforeRead && at != fault.AfterRead {
			x.flush() // before that nothing, not even a header, may go out
		}
		x.hang()
	case fault.Reset:
		x.drop(true)
	case fault.Close:
		x.drop(false)
	case fault.ErrorEvent:
		e := pydantic.InternalError()
		if f.Status != 0 {
			e = &pydantic.Error{Status: f.Status, Kind: http.StatusText(f.Status), Message: http.StatusText(f.Status)}
		}
		x.fail(e)
	case fault.Garbage:
		x.garbage()
	case fault.Die:
		x.life.server.Kill()
	case fault.Abort:
		x.finish("abort", nil)
	case fault.Recomputed:
		x.finish("stop", "recomputed")
	case fault.Slow, fault.NoKV:
		return false // act elsewhere
	}
	return true
}

// finish ends a request without another token.
func (x *exchange) finish(finish string, stop any) {
	object, said := "chat.completion", `"message":{"role":"assistant","content":""}`
	switch {
	case x.api != request.Chat:
		object, said = "text_completion", `"text":""`
	case x.streaming:
		object, said = "chat.completion.chunk", `"delta":{"content":""}`
	}
	b := []byte(`{"id":"` + x.id + `","object":"` + object + `","choices":[{"index":0,` + said + `,"finish_reason":"` + finish + `","stop_reason":`)
	b = append(answer.AppendReason(b, stop), "}]"...)
	if x.streaming {
		x.write(append(append([]byte("data: "), b...), "}\n\ndata: [DONE]\n\n"...))
		return
	}
	pydantic.WriteJSON(x.w, http.StatusOK, append(b, `,"usage":{"prompt_tokens":1,"total_tokens":1,"completion_tokens":0},"kv_transfer_params":null}`...))
}

func (x *exchange) status(f *fault.Fault) {
	for k, v := range f.Header {
		x.w.Header().Set(k, v)
	}
	if f.Body == "" {
		x.refuse(&pydantic.Error{Status: f.Status, Kind: "InternalServerError", Message: http.StatusText(f.Status)})
		return
	}
	pydantic.WriteJSON(x.w, f.Status, []byte(f.Body))
}

// flusher is what net/http's ResponseWriter offers besides.
type flusher interface{ FlushError() error }

func (x *exchange) flush() { x.broken = x.flusher.FlushError() != nil || x.broken }

// hang waits for the client to leave or the engine to die.
func (x *exchange) hang() {
	select {
	case <-x.r.Context().Done():
		x.aborted()
	case <-x.life.done:
	}
}

// drop ends the connection, by RST or by FIN.
func (x *exchange) drop(reset bool) {
	conn := x.hijack()
	if conn == nil {
		return
	}
	if reset {
		conns.SetReset(conn)
	}
	_ = conn.Close()
}

func (x *exchange) hijack() net.Conn {
	if x.streaming {
		x.flush()
	}
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		return nil // the connection is gone already
	}
	return conn
}

func (x *exchange) garbage() {
	if x.streaming {
		x.write([]byte("data: {\"choices\": [\xff\xfe garbage\n\n"))
		return
	}
	if conn := x.hijack(); conn != nil {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte("\x16\x03\x01 this is no HTTP \xff\r\n\r\n"))
		_ = conn.Close()
	}
}

// fail answers with an error, inside the stream once that has begun.
func (x *exchange) fail(e *pydantic.Error) {
	x.life.count.failed.Add(1)
	switch {
	case !x.streaming:
		x.refuse(e)
		return
	case x.api == request.Responses:
		// vLLM finds no event for what it would say, and breaks off.
		x.drop(false)
		return
	case x.api == request.Messages:
		e.Kind = "internal_error" // whatever it was
		x.write(append(e.AppendMessages(append([]byte(nil), "event: error\ndata: "...)), "\n\n"...))
		return
	}
	b := append(make([]byte, 0, 256), "data: "...)
	x.write(append(e.Append(b, true), "\n\ndata: [DONE]\n\n"...))
}

// write sends one or more whole events.
func (x *exchange) write(b []byte) bool {
	if _, err := x.w.Write(b); err != nil {
		x.broken = true
		return false
	}
	x.flush()
	return !x.broken
}

// wait lets time pass; false means that the client left or the engine died.
func (x *exchange) wait(d time.Duration) bool {
	if d <= 0 {
		return x.alive()
	}
	if x.timer == nil {
		x.timer = time.NewTimer(d)
	} else {
		x.timer.Reset(d)
	}
	select {
	case <-x.timer.C:
		return true
	case <-x.r.Context().Done():
		x.timer.Stop()
		return false
	case <-x.life.done:
		x.timer.Stop()
		return false
	}
}

func (x *exchange) alive() bool {
	select {
	case <-x.r.Context().Done():
		return false
	case <-x.life.done:
		return false
	default:
		return !x.broken
	}
}

// aborted counts the request as given up by its client, unless it is the
// engine that ended. Whoever sees it counted sees it running no more.
func (x *exchange) aborted() {
	x.release()
	select {
	case <-x.life.done:
		return
	default:
	}
	if x.counted {
		return
	}
	x.counted = true
	x.life.server.noteAbort(x.id)
}

// refuse answers with an error. What the framework says of a request that is none has
// one shape on all routes.
func (x *exchange) refuse(e *pydantic.Error) {
	if x.api != request.Messages || e.Kind == "" || e.Kind == "Bad Request" {
		e.Write(x.w)
		return
	}
	pydantic.WriteJSON(x.w, e.Status, e.AppendMessages(nil))
}
