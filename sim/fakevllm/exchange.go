package fakevllm

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

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

// recordBytes bounds the bodies kept in a record.
const recordBytes = 64 << 20

// Request is one request as it arrived, before anything looked at it.
type Request struct {
	Time   time.Time
	Method string
	Path   string
	Header http.Header
	Body   []byte // raw; nil when the client never sent it whole
}

// requests keeps the newest requests.
type requests struct {
	Limit int // how many, below 0 none

	mu    sync.Mutex // guards everything below
	bytes int
	list  []Request
}

// Add keeps a request and forgets what is too much.
func (rec *requests) Add(r *http.Request, body []byte) {
	if rec.Limit < 0 {
		return
	}
	req := Request{Time: time.Now(), Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Body: body}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.list = append(rec.list, req)
	rec.bytes += len(body)
	for len(rec.list) > rec.Limit || rec.bytes > recordBytes && len(rec.list) > 1 {
		rec.bytes -= len(rec.list[0].Body)
		rec.list[0] = Request{}
		rec.list = rec.list[1:]
	}
}

// All lists what is kept, oldest first. The bodies are shared: don't change them.
func (rec *requests) All() []Request {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return slices.Clone(rec.list)
}

// Forget empties it.
func (rec *requests) Forget() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.list, rec.bytes = nil, 0
}

// entry is one line of a journal: the arrival of a request that generates, or its end.
type entry struct {
	At  int64  `json:"at"`            // Unix time in nanoseconds
	Seq int64  `json:"seq"`           // number of the request in this process
	ID  string `json:"id,omitempty"`  // X-Request-Id; arrivals only
	End bool   `json:"end,omitempty"` // the request has ended, answered or not
}

// Journal writes a line of JSON when a request that generates arrives, and another one when it
// ends. A line is written before the request is processed, so that a process that is killed
// leaves the arrivals of its unfinished requests.
type Journal struct {
	mu  sync.Mutex // guards all fields
	w   io.Writer
	seq int64
}

// NewJournal returns a journal that writes to w.
func NewJournal(w io.Writer) *Journal { return &Journal{w: w} }

// Begin writes an arrival, and returns the function that writes the end. On nil it does nothing.
func (j *Journal) Begin(id string) (end func()) {
	if j == nil {
		return func() {}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	seq := j.seq
	j.write(entry{Seq: seq, ID: id})
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.write(entry{Seq: seq, End: true})
	}
}

// write writes one line. A journal that cannot be written makes the run of a test worthless.
func (j *Journal) write(e entry) {
	e.At = time.Now().UnixNano()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.w.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("write the journal: %v", err))
	}
}
