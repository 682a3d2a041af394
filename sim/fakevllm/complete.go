package fakevllm

import (
	"net/http"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// job is an admitted request.
type job struct {
	answer.Reply
	kvReq    kvparams.NIXLParams
	loadErr  error // the KV load failed and the policy is to fail
	mooncake kvparams.MooncakeParams
	fetching chan handover.Fetched // of a Mooncake decode that loads
	offers   bool                  // a Mooncake prefill whose blocks a decode may fetch
	store    *responses            // nil for an engine that stores none
	spec     *kvparams.LMCacheSpec // of an LMCache prefill, nil if none
	tags     string                // of the keys of LMCache's chunks
	arrived  time.Time
}

// complete serves the two completion routes.
func (x *exchange) complete(body []byte, chat bool) {
	l := x.life
	s := l.server
	l.count.requests.Add(1)
	j := &job{Reply: answer.Reply{Details: s.opt.PromptTokensDetails}, arrived: time.Now()}
	j.Created = j.arrived.Unix()
	p, err := x.api.Parse(body)
	j.Request, j.store = p, l.responses
	x.id = responseID(x.r, p, j, chat)
	if err == nil {
		err = x.admit(j)
	}
	if err != nil {
		if p != nil {
			x.freeRemote(p.KV)
		}
		x.reject(pydantic.AsError(err))
		return
	}
	if s.opt.StrictPrefill {
		s.inspect(j, x.r)
	}
	if j.Background && j.store != nil {
		x.background(j)
		return
	}
	x.run(j)
}

// shutsDown tells that the engine ends the request before it has begun with it.
func (x *exchange) shutsDown() bool {
	return x.fault != nil && x.fault.Kind == fault.Abort && x.fault.At == fault.AfterRole
}

// run generates the answer of an admitted request.
func (x *exchange) run(j *job) {
	l := x.life
	defer x.withdraw(j)
	if x.paused(j) {
		return
	}
	if x.shutsDown() {
		j.KV = nil // it fetches nothing, and frees nothing elsewhere
	} else if e := x.startKV(j); e != nil {
		x.core.stats.Fail.Add(1)
		x.fail(e)
		return
	}
	if !x.queue(j) {
		x.core.stats.Abort.Add(1)
		x.aborted()
		return
	}
	defer x.release()
	total := 0
	for _, ids := range j.Prompts {
		total += len(ids)
	}
	l.count.promptTokens.Add(int64(total))
	x.core.stats.PromptTokens.Add(int64(total))
	hits := j.Cached
	if x.core.cache != nil {
		hits = x.hits
	}
	x.core.stats.CacheQueries.Add(int64(total))
	x.core.stats.CacheHits.Add(int64(hits))
	l.count.cacheQueries.Add(int64(total))
	l.count.cacheHits.Add(int64(hits))
	if j.Stream {
		x.stream(j)
	} else {
		x.respond(j)
	}
	x.core.stats.E2E.Observe(time.Since(j.arrived))
}

// responseID is the id of the answer: made of X-Request-Id, else of the
// body's request_id, else random.
func responseID(r *http.Request, p *request.Request, j *job, chat bool) string {
	base := r.Header.Get("X-Request-Id")
	if base == "" && p != nil {
		base = p.RequestID
	}
	if base == "" {
		base = strings.ReplaceAll(newUUID(), "-", "")
	}
	j.Base = base
	j.ID = "cmpl-" + base
	if p != nil && p.API == request.Responses {
		if j.ID = p.RequestID; j.ID == "" {
			j.ID = "resp_" + strings.ReplaceAll(newUUID(), "-", "") // the header is not looked at
		}
		return j.ID
	}
	switch {
	case p != nil && p.API == request.Generate:
		j.ID = "generate-tokens-" + base
	case chat:
		j.ID = "chatcmpl-" + base
	}
	return j.ID
}

// admit checks what depends on the engine: the model and the lengths.
func (x *exchange) admit(j *job) error {
	s := x.life.server
	if j.Stream && j.BeamSearch {
		return pydantic.BadRequest("", nil, "Streaming is not currently supported with beam search")
	}
	if err := x.chooseRank(); err != nil {
		return err
	}
	if !s.servesModel(j.Request.Model) {
		return pydantic.ModelNotFound(j.Request.Model, s.opt.Models)
	}
	j.ServedAs = j.Request.Model
	if j.ServedAs == "" {
		j.ServedAs = s.opt.Models[0]
	}
	if err := j.admitStored(); err != nil {
		return err
	}
	j.Told = answer.TurnOf(s.opt.Turns, j.Request)
	j.Tokenize = s.opt.tokenizer()
	for i, text := range j.PromptText {
		if s.opt.FineTokens && text != "" { // else it came as ids
			j.Prompts[i] = model.TokenizeFine(text)
		}
	}
	if j.Chat {
		if err := j.Render(); err != nil {
			return err
		}
	}
	return j.Fit(s.opt.MaxModelLen)
}

// queue waits for a free place among MaxRunning, and for the request's turn.
func (x *exchange) queue(j *job) bool {
	l := x.life
	if x.core.slots != nil || x.core.queues() {
		x.core.waiting.Add(1)
		defer x.core.waiting.Add(-1)
	}
	if x.core.slots != nil {
		select {
		case x.core.slots <- struct{}{}:
		case <-x.r.Context().Done():
			return false
		case <-l.done:
			return false
		}
	}
	if !x.schedule(j) {
		if x.core.slots != nil {
			<-x.core.slots
		}
		return false
	}
	x.core.stats.Queue.Observe(time.Since(j.arrived))
	x.core.running.Add(1)
	x.placed = true
	return true
}

// release gives the place and what is held of the cache back, once.
func (x *exchange) release() {
	x.endTurn()
	x.unhold()
	if !x.placed {
		return
	}
	x.placed = false
	x.core.running.Add(-1)
	if x.core.slots != nil {
		<-x.core.slots
	}
}

// gone ends a request whose client left or whose engine died.
func (x *exchange) gone() {
	x.release()
	x.core.stats.Abort.Add(1)
	x.aborted()
}

// completed counts a request that was answered whole; it runs no more.
func (x *exchange) completed() {
	x.release()
	x.life.count.completed.Add(1)
}

// finished counts one complete sequence.
func (c *core) finished(reason string) {
	if reason == "length" {
		c.stats.Length.Add(1)
		return
	}
	c.stats.Stop.Add(1)
}

// cutCall is the answer to a required tool call that ended in its middle: what
// there is of it does not parse.
func cutCall() *pydantic.Error {
	return pydantic.BadRequest("", nil, "1 validation error for list[FunctionDefinition]: Invalid JSON: EOF while parsing a list at line 1 column 1")
}
