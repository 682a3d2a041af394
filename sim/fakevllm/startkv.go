package fakevllm

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// startKV does what the connector does with kv_transfer_params before the
// request runs. The error is the answer of an engine that would have crashed.
func (x *exchange) startKV(j *job) *pydantic.Error {
	l := x.life
	s := l.server
	if j.KV != nil {
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
	j.kvReq = kvparams.ParseNIXL(j.KV, s.opt.Mode)
	local := s.opt.Role != RolePrefill
	switch j.kvReq.Form {
	case kvparams.Produce:
		local = false
	case kvparams.Fatal:
		s.badKV.add(x.id + ": " + j.kvReq.Why)
		l.count.badKV.Add(1)
		l.count.crashes.Add(1)
		return pydantic.InternalError()
	case kvparams.Bad:
		s.badKV.add(x.id + ": " + j.kvReq.Why)
		l.count.badKV.Add(1)
		s.opt.Log.WithField("request_id", x.id).Warnf("got invalid KVTransferParams: %s", j.kvReq.Why)
		if local {
			l.count.recomputed.Add(1)
		}
	case kvparams.Load:
		if len(j.Prompts) > 1 || j.N > 1 || j.PromptLogprobs != nil {
			// An assertion of the connector fails for such a request and takes
			// the whole engine down (CVE-2026-94623).
			l.count.crashes.Add(1)
			return pydantic.InternalError()
		}
		err := x.load(j)
		if errors.Is(err, handover.ErrExpired) && s.opt.Mode == NIXL {
			// Pull is a one-sided read: what stands in the blocks now is taken for the
			// prompt's, and the answer is wrong.
			j.WrongKV, err = true, nil
			s.refusals.add(x.id + ": " + handover.ErrExpired.Error() + ": the answer is wrong")
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
		j.Cached = len(j.Prompts[0]) - 1
		local = false
	case kvparams.Absent:
	}
	if local {
		l.count.localPrefills.Add(int64(len(j.Prompts)))
	}
	return nil
}

// load fetches the hand-over, from a neighbour in this process or over the
// side channel.
func (x *exchange) load(j *job) error {
	l := x.life
	c := j.kvReq.Claim
	g := model.NewGenerator(j.Prompts[0], 0)
	c.Prompt, c.Base, c.Version = g.Hash(), j.meeting(l.server.opt.Mode), l.server.opt.handshake()
	if c.Token == "" && !l.server.opt.RewrittenParams {
		return handover.ErrTampered
	}
	if peer := l.server.opt.Shared.Ledger(c.EngineID); peer != nil {
		return peer.Take(c, time.Now())
	}
	addr := net.JoinHostPort(j.kvReq.Host, strconv.Itoa(j.kvReq.Port))
	return l.client.Take(x.r.Context(), addr, c)
}

// freeRemote has prefill free the blocks of a request that this engine refuses: since
// vLLM 0.21 a request that only frees them runs in its place.
func (x *exchange) freeRemote(kv []byte) {
	l := x.life
	if l.server.opt.Mode != NIXL && l.server.opt.Mode != NIXLPush || oldRelease(l.server.opt.Version) {
		return
	}
	k := kvparams.ParseNIXL(kv, l.server.opt.Mode)
	if k.Form != kvparams.Load {
		return
	}
	if peer := l.server.opt.Shared.Ledger(k.Claim.EngineID); peer != nil {
		peer.Free(k.Claim.EngineID, k.Claim.RequestID)
		return
	}
	l.client.Free(x.r.Context(), net.JoinHostPort(k.Host, strconv.Itoa(k.Port)), k.Claim)
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
		return j.ID
	}
	return j.Base
}

// startPool is the KV pool of plain mode: prefill stores what decode finds.
func (x *exchange) startPool(j *job) {
	l := x.life
	pool := l.server.opt.Shared
	for _, ids := range j.Prompts {
		g := model.NewGenerator(ids, 0)
		h := g.Hash()
		if pool.Has(h) {
			j.Cached += (len(ids) - 1) / kvcache.DefaultBlockSize * kvcache.DefaultBlockSize
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
		for _, ids := range j.Prompts {
			g := model.NewGenerator(ids, 0)
			x.life.server.opt.Shared.Store(g.Hash())
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
			j.HandedOver = x.appendMoRIIO(make([]byte, 0, 768), j.mooncake.TransferID, len(j.Prompts[0]))
		}
	}
	if l.server.opt.Mode == P2P {
		x.keepP2P(j)
		return
	}
	back := l.server.opt.Bidirectional && l.server.opt.Role == RoleDecode
	if j.kvReq.Form != kvparams.Produce && !back || finish != "length" && (finish != "stop" || l.server.opt.KVOnLengthOnly || l.server.opt.Mode == Ascend) {
		return
	}
	if f := x.fault; f != nil && f.Kind == fault.NoKV {
		return
	}
	requestID := j.ID + "-" + model.Hex16(model.Mix(uint64(time.Now().UnixNano())))[:8]
	g := model.NewGenerator(j.Prompts[0], 0)
	h := handover.Handover{Prompt: g.Hash(), Token: kvparams.NewToken(), Free: x.detach()}
	if x.r.Header.Get("X-Request-Id") != "" {
		h.Base = j.meeting(l.server.opt.Mode)
	}
	token := h.Token
	if l.server.opt.RewrittenParams {
		h.Token = ""
	}
	x.core.ledger.Put(requestID, h, time.Now())
	l.count.made.Add(1)
	host, port := l.advertised(x.core)
	j.HandedOver = kvparams.AppendHandover(make([]byte, 0, 768), l.server.opt.Mode, x.core.engineID, requestID, host, port, len(j.Prompts[0]), token)
}
