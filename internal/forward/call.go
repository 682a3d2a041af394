package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/modelroute"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/forward/scratch"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/observe/tracing"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/form"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
	"github.com/pdmesh/pdmesh/internal/sched/keylimit"
)

// call is one client's request, from its arrival to its entry in the log. It belongs to one goroutine.
type call struct {
	h        *Handler
	r        *http.Request
	endpoint string
	bytesIn  int64

	times  stage.Times
	origin leg.Origin
	answer relay.Answer
	flow   flow.Request
	limit  limit
	upload upload
}

func (h *Handler) newCall(client Client, r *http.Request, endpoint string, kind openai.Kind, between relay.Observer) *call {
	c := &call{h: h, r: r, endpoint: endpoint, times: stage.Times{Start: time.Now()}, limit: limit{key: h.opts.KeyName(r)}}
	id := leg.RequestID(r.Header)
	c.origin = leg.Origin{
		Settings: &h.legs, Client: r.Context(), Header: r.Header, ID: id, Times: &c.times, Optional: kind == openai.Other || kind == openai.Generate,
		Privileged: func() bool { return h.opts.Privileged(r) },
	}
	c.origin.Trace = h.opts.Tracer.Begin(r, endpoint, c.times.Start)
	c.answer = relay.Answer{Client: client, Kind: kind, Ctx: r.Context(), ID: id, Times: &c.times, Idle: h.opts.Idle, Log: h.legs.Log, Memory: h.bodies, Gaps: between}
	c.flow = flow.Request{Settings: &h.flow, Origin: &c.origin, Answer: &c.answer, Endpoint: endpoint}
	c.flow.Route.Traced = h.opts.TraceAll || r.Header.Get("X-Pd-Trace") == "1" && h.opts.Trace(r)
	c.flow.Route.Times = &c.times
	c.answer.Route = &c.flow.Route
	if v := r.Header["X-Data-Parallel-Rank"]; len(v) == 1 && h.opts.Ranked(r) {
		// Like vLLM, ignore a value that is not a number.
		if n, err := strconv.ParseUint(v[0], 10, 16); err == nil {
			c.flow.Ranked, c.flow.Rank = true, int(n)
		}
	}
	c.flow.Session = h.opts.Sessions.ofHeader(r.Header)
	c.answer.SetRequestID() // for every outcome of the request, including errors
	h.flow.Budget.Request(c.times.Start)
	return c
}

// finish reports the request, once, and breaks the client's connection if the answer is incomplete.
func (c *call) finish() {
	c.answer.StopKeepAlive()
	if c.flow.Body != nil {
		c.flow.DropBody()
	}
	c.settle()
	route, took := &c.flow.Route, time.Since(c.times.Start)
	c.flow.CountTarget()
	if c.origin.Trace.Sampled() {
		c.endTrace()
	}
	c.h.opts.Recorder.Done(&Entry{
		RequestID: c.origin.ID, Client: c.r.RemoteAddr, KeyName: c.limit.key, Method: c.r.Method, Path: c.r.URL.Path, Endpoint: c.endpoint,
		Model: c.flow.Model(), Route: *route, Result: c.answer.Result,
		KeepAlives: c.answer.KeepAlives(), BytesIn: c.bytesIn, TraceID: c.origin.Trace.ID(c.r.Header),
		Start: c.times.Start, Duration: took, FirstToken: c.times.At(stage.First), Stages: c.times.Stages(took, route.Stream),
	})
	if c.answer.Broken {
		panic(http.ErrAbortHandler)
	}
}

func (c *call) endTrace() {
	result, route := &c.answer.Result, &c.flow.Route
	o := tracing.Outcome{
		ID: c.origin.ID, Model: c.origin.Model, Outcome: result.Outcome, Failure: string(result.Failure), DecodeOnly: route.DecodeOnly,
		Status: result.Status, Failed: route.Failed, Stream: route.Stream,
	}
	if handed, first := c.times.At(stage.Prefilled), c.times.At(stage.First); handed > 0 && first > 0 {
		o.Handed, o.First = c.times.Start.Add(handed), c.times.Start.Add(first)
	}
	c.origin.Trace.End(&o)
}

func (c *call) completion(kind openai.Kind) {
	if !c.readJSON() {
		return
	}
	req, err := request.Parse(kind, c.flow.Body.Bytes())
	if c.parsed(req, err) {
		if err := c.place(); err != nil {
			c.answer.Refuse(err)
			return
		}
		want := keylimit.Want{MaxTokens: req.MaxTokens, Generates: true}
		if keys := c.h.opts.Keys; keys != nil && keys.Limited() {
			want.Bytes = req.TextBytes()
		}
		if !c.admit(want) {
			return
		}
		c.split(req)
		if req.Stream {
			c.answer.StartKeepAlive(c.h.opts.KeepAlive)
		}
		c.flow.Complete(req)
	}
}

// passThrough passes a request with a JSON body to one instance; reason is that of Handler.Passthrough.
func (c *call) passThrough(reason string) {
	if !c.readJSON() {
		return
	}
	req, err := request.ParseOther(c.flow.Body.Bytes())
	if c.parsed(req, err) && c.admit(c.passed(len(req.Body), reason)) {
		c.split(req)
		c.answer.Generates = reason != ""
		c.flow.PassThrough(flow.Passthrough{Method: c.r.Method, Target: c.target(), Body: req.NewEdit().Body(), Named: req.Named, Stream: req.Stream, DecodeOnly: reason})
	}
}

// passThroughForm passes a request with a form as its body to one instance, unchanged.
func (c *call) passThroughForm(reason string) {
	if !c.readBody() {
		return
	}
	bytes := c.flow.Body.Bytes()
	f, err := form.Parse(c.r.Header["Content-Type"], bytes)
	if err != nil {
		c.flow.Invalid(err)
		return
	}
	c.origin.Model, c.flow.Route.Stream = f.Model, f.Stream
	if !c.admit(keylimit.Want{}) { // the number of tokens of the file is unknown
		return
	}
	c.split(nil)
	c.flow.PassThrough(flow.Passthrough{Method: c.r.Method, Target: c.target(), Body: splice.Of(bytes), Named: f.Named, Stream: f.Stream, DecodeOnly: reason})
}

// passThroughNoBody passes a request without a body to one instance.
func (c *call) passThroughNoBody() {
	c.limit.engines = true
	c.flow.PassThrough(flow.Passthrough{Method: c.r.Method, Target: c.target()})
}

// target returns the path with its query, as in upstream.Request.Path.
func (c *call) target() string {
	if q := c.r.URL.RawQuery; q != "" {
		return c.r.URL.Path + "?" + q
	}
	return c.r.URL.Path
}

// parsed records the model of a request and whether it streams. It answers an invalid request and returns
// false.
func (c *call) parsed(req *request.Request, err error) bool {
	if req != nil {
		c.origin.Model, c.flow.Route.Stream = req.Model, req.Stream
		if c.flow.Session == "" {
			c.flow.Session = c.h.opts.Sessions.ofBody(req)
		}
	}
	if err != nil {
		model := c.origin.Model
		if c.h.routeOf(model) != nil {
			c.origin.Model = "" // any engine; if it refuses only the name, the error is the proxy's
		}
		c.flow.Invalid(err)
		c.origin.Model = model
		return false
	}
	req.KeepPriority = req.Raw(request.FieldPriority) != nil && c.h.opts.Privileged(c.r)
	return true
}

// split sends a request whose model is the name of a model route to one of its targets.
func (c *call) split(req *request.Request) {
	if route := c.h.routeOf(c.origin.Model); route != nil {
		c.flow.Split(route.Begin(c.flow.Session, c.limit.key), req)
	}
}

// routeOf returns the model route for a model. It is nil if there is none, or if an engine serves a model
// of the same name and the route may not replace it (Route.Own).
func (h *Handler) routeOf(model string) *modelroute.Route {
	route := h.opts.Routes.Find(model)
	if route == nil || !route.Own && h.opts.Picker.Lists(model) {
		return nil
	}
	return route
}

// readJSON reads the whole body of a request whose Content-Type is JSON. On failure, it answers the request
// and returns false.
func (c *call) readJSON() bool {
	if !isJSON(c.r.Header) {
		c.answer.Refuse(openai.NotJSON())
		return false
	}
	return c.readBody()
}

// readBody reads the whole request body. On failure, it answers the request and returns false.
func (c *call) readBody() bool {
	limit, length := c.h.opts.MaxBody, c.r.ContentLength
	if err := openai.CheckEncoding(c.r.Header); err != nil {
		c.answer.Refuse(err)
		return false
	}
	switch {
	case length > limit:
		c.answer.CloseAfter()
		c.answer.Refuse(tooLarge(limit))
		return false
	case !c.h.bodies.Fits(length):
		c.refuseNoMemory()
		return false
	}
	client := c.answer.Client
	var in io.Reader = c.r.Body
	if length <= 0 { // a declared length has been checked already
		in = http.MaxBytesReader(client, c.r.Body, limit)
	}
	c.upload = upload{in: in, r: c.r, client: client, timeout: c.h.opts.BodyTimeout}
	defer context.AfterFunc(c.r.Context(), func() { _ = client.SetReadDeadline(time.Now()) })()
	body, err := c.h.bodies.Read(&c.upload, length)
	c.flow.Body, c.bytesIn = body, int64(len(body.Bytes()))
	if err == nil {
		_ = client.SetReadDeadline(time.Time{})
		return true
	}
	// The deadline remains: when net/http closes the body, it reads the rest.
	var over *http.MaxBytesError
	switch {
	case errors.Is(err, scratch.ErrNoMemory):
		c.refuseNoMemory()
	case errors.As(err, &over):
		c.answer.Refuse(tooLarge(limit))
	// net/http cancels the context of a request after any error while it reads the body.
	case c.r.Context().Err() != nil && !errors.Is(err, os.ErrDeadlineExceeded), errors.Is(context.Cause(c.r.Context()), leg.ErrStopping):
		c.answer.ClientGone()
	default:
		c.answer.CloseAfter()
		c.answer.Refuse(openai.BadRequest("", "the request body could not be read: "+c.bodyError(err).Error()))
	}
	return false
}

// bodyError returns an error of reading the request body with a message for the client.
func (c *call) bodyError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("it did not arrive within %g s (a fixed limit) per %d KiB", c.h.opts.BodyTimeout.Seconds(), uploadPiece>>10)
	}
	return err
}

// uploadPiece is the number of bytes of a request body that must arrive within one deadline.
const uploadPiece = 256 << 10

// upload reads a request body, with a new deadline for each uploadPiece.
type upload struct {
	in      io.Reader
	r       *http.Request
	client  Client
	timeout time.Duration
	left    int // bytes until the next deadline
	due     time.Time
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	if u.left <= 0 {
		u.left, u.due = uploadPiece, time.Now().Add(u.timeout)
		_ = u.client.SetReadDeadline(u.due) // not supported: no deadline
		if err := u.r.Context().Err(); err != nil {
			return 0, err // the deadline above has replaced the one that readBody set when the client left
		}
	}
	n, err := u.in.Read(p)
	u.left -= n
	if err != nil && err != io.EOF && u.r.Context().Err() != nil && !time.Now().Before(u.due) {
		err = os.ErrDeadlineExceeded // net/http has another error if the trailer did not arrive
	}
	return n, err
}

// refuseNoMemory refuses a request whose body does not fit in the memory for request bodies.
func (c *call) refuseNoMemory() {
	c.h.bodies.Refuse()
	c.answer.CloseAfter()
	c.answer.Refuse(&openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, RetryAfter: leg.RetryWait,
		Message: "the request bodies in this proxy use all memory that --max-bodies-memory allows; try again"})
}

func tooLarge(limit int64) *openai.Error {
	return &openai.Error{Status: http.StatusRequestEntityTooLarge, Type: openai.TypeTooLarge,
		Message: "the request body is larger than " + strconv.FormatInt(limit, 10) + " bytes (--max-body-bytes)"}
}

// isJSON reports whether a Content-Type is JSON to vLLM: it may have parameters, but no space before them.
func isJSON(h http.Header) bool {
	name, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(name, "application/json")
}
