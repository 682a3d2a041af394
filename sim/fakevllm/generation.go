package fakevllm

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/fakevllm/engine"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// generation is a request to one of the generating routes: its exchange, its response, and
// the leg that loads or transfers its KV cache.
type generation struct {
	*exchange
	answer.Reply
	kv  connector.Request
	leg connector.Leg
}

// generate serves the routes that do.
func (x *exchange) generate(body []byte) {
	l := x.life
	s := l.server
	l.count.Requests.Add(1)
	g := &generation{exchange: x, Reply: answer.Reply{Details: s.opt.PromptTokensDetails}}
	x.work.Arrived = time.Now()
	g.Created = x.work.Arrived.Unix()
	p, err := x.api.Parse(body)
	g.Request = p
	g.identify()
	if err == nil {
		err = g.admit()
	}
	if err != nil {
		if p != nil {
			l.connector.Refuse(x.r.Context(), p.KV)
		}
		x.refuse(err)
		return
	}
	g.connect()
	if s.opt.StrictPrefill {
		g.inspect()
	}
	if g.Background && l.responses != nil {
		g.background()
		return
	}
	g.run()
}

// identify sets the id of the response: from X-Request-Id, else from the body's request_id, else
// at random. On /v1/responses the header is not looked at.
func (g *generation) identify() {
	random, fromBody := strings.ReplaceAll(newUUID(), "-", ""), ""
	if g.Request != nil {
		fromBody = g.RequestID
	}
	g.Base = cmp.Or(g.r.Header.Get("X-Request-Id"), fromBody, random)
	switch g.api {
	case request.Responses:
		g.ID = cmp.Or(fromBody, "resp_"+random)
	case request.Generate:
		g.ID = "generate-tokens-" + g.Base
	case request.Completions:
		g.ID = "cmpl-" + g.Base
	default:
		g.ID = "chatcmpl-" + g.Base
	}
	g.id = g.ID
}

// admit checks what depends on the engine: the rank, the model and the lengths.
func (g *generation) admit() error {
	o := &g.life.server.opt
	if g.Stream && g.BeamSearch && g.api == request.Completions {
		return pydantic.BadRequest("", "Streaming is not currently supported with beam search")
	}
	core, err := g.life.chooseRank(strings.TrimSpace(g.r.Header.Get(connector.HeaderRank)))
	if err != nil {
		return err
	}
	g.work.Core = core
	if !g.life.serves(g.Request.Model) {
		return pydantic.ModelNotFound(g.Request.Model, o.Models)
	}
	g.ServedAs = cmp.Or(g.Request.Model, o.Models[0])
	if err := g.life.responses.Admit(g.Request); err != nil {
		return err
	}
	g.Scripted = answer.TurnOf(o.Turns, g.Request)
	g.Model = o.model()
	g.Interval = max(1, g.StreamInterval)
	if err := o.render(g.Request); err != nil {
		return err
	}
	if err := g.Fit(o.MaxModelLen); err != nil {
		return err
	}
	if g.Priority != 0 && o.SchedulingPolicy == "fcfs" {
		return pydantic.BadRequest("", "Got priority %v but Priority scheduling is not enabled.", g.Priority)
	}
	return nil
}

// connect passes the request to the connector, which does nothing yet.
func (g *generation) connect() {
	g.kv = connector.Request{Reply: &g.Reply, HTTP: g.r, Engine: &g.work, NoKV: g.fault != nil && g.fault.Kind == FaultNoKV}
	g.leg = g.life.connector.Leg(&g.kv)
}

// background responds immediately that the request is queued, and then processes it. With stream, it responds with
// the events (vLLM 0.32, entrypoints/openai/responses/serving.py).
func (g *generation) background() {
	ctx, cancel := context.WithCancel(context.Background())
	body := append(g.AppendResponse(nil, nil, "queued"), '}')
	g.life.responses.Queue(g.ID, body, cancel)
	if g.Stream {
		defer cancel()
		quiet := watcher{g.w}
		g.w, g.flusher, g.lifetime.Client = quiet, quiet, ctx.Done()
		g.run()
		return
	}
	pydantic.WriteJSON(g.w, http.StatusOK, body)
	g.life.count.Completed.Add(1)
	if !g.life.enter() {
		cancel()
		return
	}
	quiet := &nowhere{header: http.Header{}}
	x := g.life.newExchange(client{w: quiet, flusher: quiet, r: g.r.WithContext(ctx), api: g.api}, g.id)
	x.fault, x.work.Core, x.work.Arrived = g.fault, g.work.Core, g.work.Arrived
	g.exchange = x
	g.connect()
	g.Stream = false
	go func() {
		defer x.life.handlers.Done()
		defer cancel()
		g.run()
	}()
}

// run makes the answer of an admitted request.
func (g *generation) run() {
	defer g.leg.Drop(&g.kv)
	if g.paused() {
		return
	}
	if e := g.beginLeg(); e != nil {
		g.work.Core.Stats.Fail.Add(1)
		g.fail(e)
		return
	}
	if g.Stream && g.work.Core.Held() {
		g.beginStream() // the API server does so before the core has seen the request
	}
	if !g.work.Queue(g.Prompts, g.CacheSalt) {
		g.work.Core.Stats.Abort.Add(1)
		g.aborted()
		return
	}
	defer g.work.Release()
	g.work.CountPrompts(g.Cached)
	if g.Stream {
		g.stream()
	} else {
		g.respond()
	}
	g.work.Core.Stats.E2E.Observe(time.Since(g.work.Arrived))
}

// paused responds for a paused engine.
func (g *generation) paused() bool {
	if !g.life.server.pausing.Load() {
		return false
	}
	g.life.connector.Refuse(g.r.Context(), g.KV)
	if g.Stream {
		g.beginStream()
	}
	g.fail(&pydantic.Error{Status: http.StatusServiceUnavailable, Kind: "ServiceUnavailableError", Message: "The engine is paused."})
	return true
}

// beginLeg has the connector look at the request. An engine that aborts it before it has begun
// with it has prefill free the blocks, as for a refused request.
func (g *generation) beginLeg() *pydantic.Error {
	if g.aborts(AfterRole, 0) {
		g.life.connector.Refuse(g.r.Context(), g.KV)
		g.KV = nil
		return nil
	}
	if g.KV != nil {
		g.life.count.KVParams.Add(1)
	}
	return g.leg.Begin(&g.kv)
}

// aborts reports whether the engine aborts the request at this stage, after tokens tokens.
func (g *generation) aborts(at Stage, tokens int) bool {
	f := g.fault
	return f != nil && f.Kind == FaultAbort && f.At == at && (at != AfterTokens || f.Tokens == tokens)
}

// first waits for the first token; false means that the client disconnected or the engine exited.
func (g *generation) first() bool {
	if !g.leg.Await(&g.kv) {
		return false
	}
	o := &g.life.server.opt
	ttft, itl := o.TTFT, o.ITL
	if f := g.fault; f != nil && f.Kind == FaultSlow {
		ttft += f.TTFT
		itl += f.ITL
	}
	cached, ok := g.work.Prefill(engine.Loaded{Tokens: g.Cached, Failed: g.kv.Failed, Wrong: g.WrongKV}, ttft, itl)
	g.Cached = cached
	if ok {
		g.leg.Prefilled(&g.kv)
	}
	return ok
}

// loadFailed responds to a request whose KV cache could not be loaded.
func (g *generation) loadFailed() bool {
	if g.kv.Failed {
		g.work.Core.Stats.Fail.Add(1)
		g.fail(pydantic.InternalError())
	}
	return g.kv.Failed
}

// inspect records requests that vLLM accepts but no correct proxy sends.
func (g *generation) inspect() {
	if strings.HasPrefix(g.r.Header.Get("X-Request-Id"), "pd-trial-") {
		return // the proxy's own, which hands nothing over
	}
	role, mode := g.life.server.opt.Role, g.life.server.opt.Mode
	report := func(what string) { g.life.count.Violate("%s engine, %s: %s", role, g.ID, what) }
	if role != RoleBoth && g.r.Header.Get("X-Request-Id") == "" {
		report("no X-Request-Id")
	}
	if what := g.life.connector.Inspect(&g.kv); what != "" {
		report(what)
	}
	if role == RolePrefill {
		for _, found := range []struct {
			bad  bool
			what string
		}{
			{g.Stream, "stream is true"},
			{g.HasStreamOptions, "stream_options is present"},
			{g.MaxTokens == nil || *g.MaxTokens != 1, "max_tokens is not 1"},
			{g.MaxCompletionTokens != nil && *g.MaxCompletionTokens != 1, "max_completion_tokens is not 1"},
			{g.Store || g.Background, "the answer is to be stored"},
			{g.StopSequences, "stop_sequences are present"},
			{g.N != 1 || len(g.Prompts) != 1, "more than one answer is asked for"},
			{(mode == P2P || mode == Mooncake) && g.r.Header.Get(connector.HeaderRank) == "", "no X-data-parallel-rank"},
		} {
			if found.bad {
				report(found.what)
			}
		}
	}
}
