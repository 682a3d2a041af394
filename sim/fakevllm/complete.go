package fakevllm

import (
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// job is an admitted request.
type job struct {
	*params
	id       string // chatcmpl-<base> or cmpl-<base>
	base     string
	created  int64
	model    string
	kvReq    kvRequest
	kvJSON   []byte // of the response, nil for null
	echoOnly bool
	limits   []int // max_tokens per prompt
	cached   int   // prompt tokens that needed no computing
	details  bool  // usage tells of them
	loadErr  error // the KV load failed and the policy is to fail
	mooncake mooncakeRequest
	fetching chan fetched // of a Mooncake decode that loads
	offers   bool         // a Mooncake prefill whose blocks a decode may fetch
	wrongKV  bool         // what was loaded is of another prompt
	store    *responses   // nil for an engine that stores none
	turn     *Turn        // what the model is told to say, nil where it says its own
	spec     *disaggSpec  // of an LMCache prefill, nil if none
	tags     string       // of the keys of LMCache's chunks
	arrived  time.Time
}

// complete serves the two completion routes.
func (x *exchange) complete(body []byte, chat bool) {
	l := x.life
	s := l.server
	l.count.requests.Add(1)
	j := &job{arrived: time.Now(), details: s.opt.PromptTokensDetails}
	j.created = j.arrived.Unix()
	p, err := x.api.parse(body)
	j.params, j.store = p, l.responses
	x.id = responseID(x.r, p, j, chat)
	if err == nil {
		err = x.admit(j)
	}
	if err != nil {
		if p != nil {
			x.freeRemote(p.kv)
		}
		x.reject(asAPIError(err))
		return
	}
	if s.opt.StrictPrefill {
		s.inspect(j, x.r)
	}
	if j.agent.background && j.store != nil {
		x.background(j)
		return
	}
	x.run(j)
}

// shutsDown tells that the engine ends the request before it has begun with it.
func (x *exchange) shutsDown() bool {
	return x.fault != nil && x.fault.Kind == FaultAbort && x.fault.At == AfterRole
}

// run generates the answer of an admitted request.
func (x *exchange) run(j *job) {
	l := x.life
	defer x.withdraw(j)
	if x.paused(j) {
		return
	}
	if x.shutsDown() {
		j.kv = nil // it fetches nothing, and frees nothing elsewhere
	} else if e := x.startKV(j); e != nil {
		x.core.stats.fail.Add(1)
		x.fail(e)
		return
	}
	if !x.queue(j) {
		x.core.stats.abort.Add(1)
		x.aborted()
		return
	}
	defer x.release()
	total := 0
	for _, ids := range j.prompts {
		total += len(ids)
	}
	l.count.promptTokens.Add(int64(total))
	x.core.stats.promptTokens.Add(int64(total))
	hits := j.cached
	if x.core.cache != nil {
		hits = x.hits
	}
	x.core.stats.cacheQueries.Add(int64(total))
	x.core.stats.cacheHits.Add(int64(hits))
	l.count.cacheQueries.Add(int64(total))
	l.count.cacheHits.Add(int64(hits))
	if j.stream {
		x.stream(j)
	} else {
		x.respond(j)
	}
	x.core.stats.e2e.observe(time.Since(j.arrived))
}

// responseID is the id of the answer: made of X-Request-Id, else of the
// body's request_id, else random.
func responseID(r *http.Request, p *params, j *job, chat bool) string {
	base := r.Header.Get("X-Request-Id")
	if base == "" && p != nil {
		base = p.requestID
	}
	if base == "" {
		base = strings.ReplaceAll(newUUID(), "-", "")
	}
	j.base = base
	j.id = "cmpl-" + base
	if p != nil && p.api == apiResponses {
		if j.id = p.requestID; j.id == "" {
			j.id = "resp_" + strings.ReplaceAll(newUUID(), "-", "") // the header is not looked at
		}
		return j.id
	}
	switch {
	case p != nil && p.api == apiGenerate:
		j.id = "generate-tokens-" + base
	case chat:
		j.id = "chatcmpl-" + base
	}
	return j.id
}

// admit checks what depends on the engine: the model and the lengths.
func (x *exchange) admit(j *job) error {
	s := x.life.server
	if j.stream && j.beamSearch {
		return badRequest("", nil, "Streaming is not currently supported with beam search")
	}
	if err := x.chooseRank(); err != nil {
		return err
	}
	if !s.servesModel(j.params.model) {
		return modelNotFound(j.params.model, s.opt.Models)
	}
	j.model = j.params.model
	if j.model == "" {
		j.model = s.opt.Models[0]
	}
	if err := j.admitStored(); err != nil {
		return err
	}
	j.turn = turnOf(s.opt.Turns, j.params)
	j.tokenize = s.opt.tokenizer()
	for i, text := range j.promptText {
		if s.opt.FineTokens && text != "" { // else it came as ids
			j.prompts[i] = TokenizeFine(text)
		}
	}
	if j.chat {
		if err := j.render(); err != nil {
			return err
		}
	}
	return j.fit(s.opt.MaxModelLen)
}

// fit checks the sampling parameters, which vLLM does after it knows the
// model, and applies the model's length to every prompt.
func (j *job) fit(maxModelLen int) error {
	if err := j.verify(); err != nil {
		return err
	}
	j.truncated(maxModelLen)
	j.limits = make([]int, len(j.prompts))
	for i, ids := range j.prompts {
		n, echoOnly, err := j.limit(len(ids), maxModelLen)
		if err != nil {
			return err
		}
		j.limits[i], j.echoOnly = n, echoOnly
	}
	return nil
}

// startKV does what the connector does with kv_transfer_params before the
// request runs. The error is the answer of an engine that would have crashed.
func (x *exchange) startKV(j *job) *apiError {
	l := x.life
	s := l.server
	if j.kv != nil {
		l.count.kvParams.Add(1)
	}
	switch s.opt.Mode {
	case Plain:
		x.startPool(j)
		return nil
	case Mooncake:
		return x.startMooncake(j)
	case P2P:
		x.startP2P(j)
		return nil
	case MoRIIORead, MoRIIOWrite:
		return x.startMoRIIO(j)
	case LMCache:
		return x.loadLMCache(j)
	case NIXL, NIXLPush, Ascend:
	}
	j.kvReq = parseKV(j.kv, s.opt.Mode)
	local := s.opt.Role != RolePrefill
	switch j.kvReq.form {
	case kvProduce:
		local = false
	case kvFatal:
		s.badKV.add(x.id + ": " + j.kvReq.why)
		l.count.badKV.Add(1)
		l.count.crashes.Add(1)
		return internalError()
	case kvBad:
		s.badKV.add(x.id + ": " + j.kvReq.why)
		l.count.badKV.Add(1)
		s.opt.Log.WithField("request_id", x.id).Warnf("got invalid KVTransferParams: %s", j.kvReq.why)
		if local {
			l.count.recomputed.Add(1)
		}
	case kvLoad:
		if len(j.prompts) > 1 || j.n > 1 || j.promptLogprobs != nil {
			// An assertion of the connector fails for such a request and takes
			// the whole engine down (CVE-2026-94623).
			l.count.crashes.Add(1)
			return internalError()
		}
		err := x.load(j)
		if errors.Is(err, errExpired) && s.opt.Mode == NIXL {
			// Pull is a one-sided read: what stands in the blocks now is taken for the
			// prompt's, and the answer is wrong.
			j.wrongKV, err = true, nil
			s.refusals.add(x.id + ": " + errExpired.Error() + ": the answer is wrong")
			l.count.wrongKV.Add(1)
		}
		if err != nil {
			s.refusals.add(x.id + ": " + err.Error())
			l.count.refused.Add(1)
			if s.opt.KVLoadFailurePolicy == PolicyFail {
				j.loadErr = err
				return nil
			}
			l.count.recomputed.Add(1)
			break
		}
		l.count.loaded.Add(1)
		j.cached = len(j.prompts[0]) - 1
		local = false
	case kvAbsent:
	}
	if local {
		l.count.localPrefills.Add(int64(len(j.prompts)))
	}
	return nil
}

// load fetches the hand-over, from a neighbour in this process or over the
// side channel.
func (x *exchange) load(j *job) error {
	l := x.life
	c := j.kvReq.claim
	g := NewGenerator(j.prompts[0], 0)
	c.prompt, c.base, c.version = g.hash(), j.meeting(l.server.opt.Mode), l.server.opt.handshake()
	if c.token == "" && !l.server.opt.RewrittenParams {
		return errTampered
	}
	if peer := l.server.opt.Shared.ledger(c.engineID); peer != nil {
		return peer.take(c, time.Now())
	}
	addr := net.JoinHostPort(j.kvReq.host, strconv.Itoa(j.kvReq.port))
	return l.client.take(x.r.Context(), addr, c)
}

// freeRemote has prefill free the blocks of a request that this engine refuses: since
// vLLM 0.21 a request that only frees them runs in its place.
func (x *exchange) freeRemote(kv []byte) {
	l := x.life
	if l.server.opt.Mode != NIXL && l.server.opt.Mode != NIXLPush || oldRelease(l.server.opt.Version) {
		return
	}
	k := parseKV(kv, l.server.opt.Mode)
	if k.form != kvLoad {
		return
	}
	if peer := l.server.opt.Shared.ledger(k.claim.engineID); peer != nil {
		peer.free(k.claim.engineID, k.claim.requestID)
		return
	}
	l.client.free(x.r.Context(), net.JoinHostPort(k.host, strconv.Itoa(k.port)), k.claim)
}

// oldRelease tells a version before 0.21.
func oldRelease(version string) bool {
	minor, ok := strings.CutPrefix(version, "0.")
	minor, _, _ = strings.Cut(minor, ".")
	n, err := strconv.Atoi(minor)
	return ok && err == nil && n < 21
}

// meeting is the id by which the two legs know each other. In push mode that is the
// engine's own, which the kind of the route is a part of.
func (j *job) meeting(mode Mode) string {
	if mode == NIXLPush {
		return j.id
	}
	return j.base
}

// startPool is the KV pool of plain mode: prefill stores what decode finds.
func (x *exchange) startPool(j *job) {
	l := x.life
	pool := l.server.opt.Shared
	for _, ids := range j.prompts {
		g := NewGenerator(ids, 0)
		h := g.hash()
		if pool.has(h) {
			j.cached += (len(ids) - 1) / cacheBlock * cacheBlock
			continue
		}
		if l.server.opt.Role != RolePrefill {
			l.count.localPrefills.Add(1)
		}
	}
}

// prefilled is called when the prompts are computed.
func (x *exchange) prefilled(j *job) {
	switch x.life.server.opt.Mode {
	case LMCache:
		x.sendChunks(j)
	case NIXL, Mooncake:
	case Plain:
		for _, ids := range j.prompts {
			g := NewGenerator(ids, 0)
			x.life.server.opt.Shared.store(g.hash())
		}
	}
}

// handOver registers the finished prefill and renders what the response tells
// about it. Only the first of several prompts gets one.
func (x *exchange) handOver(j *job, finish string) {
	l := x.life
	if offered := j.offers; offered {
		x.offer(j, finish)
		if m := l.server.opt.Mode; !j.offers && (m == MoRIIORead || m == MoRIIOWrite) {
			j.kvJSON = x.appendMoRIIO(make([]byte, 0, 768), j.mooncake.transferID, len(j.prompts[0]))
		}
	}
	if l.server.opt.Mode == P2P {
		x.keepP2P(j)
		return
	}
	back := l.server.opt.Bidirectional && l.server.opt.Role == RoleDecode
	if j.kvReq.form != kvProduce && !back || finish != "length" && (finish != "stop" || l.server.opt.KVOnLengthOnly || l.server.opt.Mode == Ascend) {
		return
	}
	if f := x.fault; f != nil && f.Kind == FaultNoKV {
		return
	}
	requestID := j.id + "-" + hex16(finish64(uint64(time.Now().UnixNano())))[:8]
	g := NewGenerator(j.prompts[0], 0)
	h := handover{prompt: g.hash(), token: newToken(), free: x.detach()}
	if x.r.Header.Get("X-Request-Id") != "" {
		h.base = j.meeting(l.server.opt.Mode)
	}
	token := h.token
	if l.server.opt.RewrittenParams {
		h.token = ""
	}
	x.core.ledger.put(requestID, h, time.Now())
	l.count.made.Add(1)
	host, port := l.advertised(x.core)
	j.kvJSON = appendHandover(make([]byte, 0, 768), l.server.opt.Mode, x.core.engineID, requestID, host, port, len(j.prompts[0]), token)
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
	x.core.stats.queue.observe(time.Since(j.arrived))
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
	x.core.stats.abort.Add(1)
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
		c.stats.length.Add(1)
		return
	}
	c.stats.stop.Add(1)
}

// cutCall is the answer to a required tool call that ended in its middle: what
// there is of it does not parse.
func cutCall() *apiError {
	return badRequest("", nil, "1 validation error for list[FunctionDefinition]: Invalid JSON: EOF while parsing a list at line 1 column 1")
}
