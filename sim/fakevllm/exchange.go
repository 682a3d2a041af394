package fakevllm

import (
	"net/http"

	"github.com/pdmesh/pdmesh/sim/fakevllm/engine"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// exchange is one request in progress: its client, its state in the engine core, and the fault
// to inject.
type exchange struct {
	client
	work engine.Request // of a request that generates

	life    *life
	fault   *Fault // nil for none
	id      string // of the answer
	counted bool   // the abort was counted
}

func (l *life) newExchange(c client, id string) *exchange {
	x := &exchange{client: c, life: l, id: id}
	x.lifetime = engine.Lifetime{Client: c.r.Context().Done(), Engine: l.stop}
	x.work.Core, x.work.Life = l.cores[0], &x.lifetime
	return x
}

// strike injects the fault if it is due; ended reports whether the exchange is over.
func (x *exchange) strike(at Stage, tokens int) (ended bool) {
	f := x.fault
	if f == nil || f.At != at || at == AfterTokens && f.Tokens != tokens {
		return false
	}
	switch f.Kind {
	case FaultStatus:
		x.status(f)
	case FaultHang:
		if at != BeforeRead && at != AfterRead {
			x.flush() // before that nothing, not even a header, may go out
		}
		x.hang()
	case FaultReset:
		x.drop(true)
	case FaultClose:
		x.drop(false)
	case FaultErrorEvent:
		e := pydantic.InternalError()
		if f.Status != 0 {
			e = &pydantic.Error{Status: f.Status, Kind: http.StatusText(f.Status), Message: http.StatusText(f.Status)}
		}
		x.fail(e)
	case FaultGarbage:
		x.garbage()
	case FaultDie:
		x.life.server.Kill()
	case FaultAbort:
		x.finish(x.id, abort, nil, tokens == 0)
	case FaultRecomputed:
		x.finish(x.id, "stop", "recomputed", tokens == 0)
	case FaultSlow, FaultNoKV:
		return false // act elsewhere
	}
	return true
}

func (x *exchange) status(f *Fault) {
	for k, v := range f.Header {
		x.w.Header().Set(k, v)
	}
	if f.Body == "" {
		x.refuse(&pydantic.Error{Status: f.Status, Kind: "InternalServerError", Message: http.StatusText(f.Status)})
		return
	}
	pydantic.WriteJSON(x.w, f.Status, []byte(f.Body))
}

// hang blocks until the client disconnects or the engine exits.
func (x *exchange) hang() {
	select {
	case <-x.lifetime.Client:
		x.aborted()
	case <-x.lifetime.Engine:
	}
}

// aborted counts the request as given up by its client, unless it is the
// engine that ended. The request is released before it is counted.
func (x *exchange) aborted() {
	x.work.Release()
	switch {
	case x.counted:
	case x.life.failed.Load():
		x.counted = true
		e := pydantic.InternalError()
		e.Message = "EngineCore encountered an issue. See stack trace (above) for the root cause." // vLLM, v1/engine/exceptions.py
		x.fail(e)
	case !x.lifetime.Dead():
		x.counted = true
		x.life.count.Abort(x.id)
	}
}

// abandon ends a request whose client disconnected or whose engine exited.
func (x *exchange) abandon() {
	x.work.Release()
	x.work.Core.Stats.Abort.Add(1)
	x.aborted()
}

// emit writes one or more whole events; false means that the client left.
func (x *exchange) emit(b []byte) bool {
	ok := x.write(b)
	if !ok {
		x.abandon()
	}
	return ok
}

// completed counts a request that was answered whole; it runs no more.
func (x *exchange) completed() {
	x.work.Release()
	x.life.count.Completed.Add(1)
}

// fail responds with an internal error of the engine.
func (x *exchange) fail(e *pydantic.Error) {
	x.life.count.Failed.Add(1)
	x.client.fail(e)
}
