package fakevllm

import (
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
)

// startP2P fetches what a prefill has kept. An incomplete remote_prefiller is none, and
// what comes too late is refused at once, so that nothing wrong is read.
func (x *exchange) startP2P(j *job) {
	l := x.life
	s := l.server
	if _, produces := kvparams.ParseP2P(j.KV, "remote_decoder"); produces {
		return
	}
	from, present := kvparams.ParseP2P(j.KV, "remote_prefiller")
	if from.ID == "" || from.Host == "" || from.Port == 0 {
		if present {
			s.badKV.add(x.id + ": remote_prefiller is incomplete")
			l.count.badKV.Add(1)
		}
		if s.opt.Role != RolePrefill {
			l.count.localPrefills.Add(int64(len(j.Prompts)))
		}
		return
	}
	g := model.NewGenerator(j.Prompts[0], 0)
	c := handover.Claim{RequestID: from.ID, Prompt: g.Hash()}
	if err := l.client.Take(x.r.Context(), from.Host+":"+strconv.Itoa(from.Port), c); err != nil {
		s.refusals.add(x.id + ": " + err.Error())
		l.count.refused.Add(1)
		if s.opt.KVLoadFailurePolicy == PolicyFail {
			j.loadErr = err
			return
		}
		l.count.recomputed.Add(1)
		l.count.localPrefills.Add(int64(len(j.Prompts)))
		return
	}
	l.count.loaded.Add(1)
	j.Cached = len(j.Prompts[0]) - 1
}

// keepP2P keeps the blocks of a prefill under its kv_request_id, however it ended.
func (x *exchange) keepP2P(j *job) {
	l := x.life
	to, _ := kvparams.ParseP2P(j.KV, "remote_decoder")
	if to.ID == "" || x.fault != nil && x.fault.Kind == fault.NoKV {
		return
	}
	if x.core.ledger.Knows(to.ID) {
		x.reused(to.ID, "a prefill has had it")
		return
	}
	g := model.NewGenerator(j.Prompts[0], 0)
	x.core.ledger.Put(to.ID, handover.Handover{Prompt: g.Hash()}, time.Now())
	l.count.made.Add(1)
}
