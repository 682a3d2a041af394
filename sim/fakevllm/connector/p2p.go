package connector

import (
	"net"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// p2p is vLLM's OffloadingConnector with a tier of type p2p: prefill keeps the blocks under the
// kv_request_id of its request, and decode fetches by that.
type p2p struct {
	*ledgers
	quiet
}

// Leg has no state.
func (p *p2p) Leg(*Request) Leg { return p }

// Begin fetches what a prefill has kept. An incomplete remote_prefiller is none, and
// what comes too late is refused at once, so that nothing wrong is read.
func (p *p2p) Begin(r *Request) *pydantic.Error {
	if _, produces := kvparams.ParseP2P(r.KV, "remote_decoder"); produces {
		return nil
	}
	from, present := kvparams.ParseP2P(r.KV, "remote_prefiller")
	if from.ID == "" || from.Host == "" || from.Port == 0 {
		if present {
			p.Count.BadHandover(r.ID, "remote_prefiller is incomplete")
		}
		if p.Role != RolePrefill {
			p.countLocal(r)
		}
		return nil
	}
	c := transfer.Claim{RequestID: from.ID, Prompt: promptHash(r.Prompts[0])}
	addr := net.JoinHostPort(from.Host, strconv.Itoa(from.Port))
	if err := transfer.Ask(r.HTTP.Context(), addr, transfer.Question{Op: "take", Claim: c}); err != nil {
		if p.refuse(r, err) {
			p.countLocal(r)
		}
		return nil
	}
	p.loaded(r)
	return nil
}

// End keeps the blocks of a prefill under its kv_request_id, however it ended.
func (p *p2p) End(r *Request, _ string, answered bool) {
	to, _ := kvparams.ParseP2P(r.KV, "remote_decoder")
	if !answered || to.ID == "" || r.NoKV {
		return
	}
	ledger := p.of(r)
	if ledger.Knows(to.ID) {
		p.reused(r, to.ID, "a prefill has had it")
		return
	}
	ledger.Put(to.ID, transfer.Offer{Prompt: promptHash(r.Prompts[0])}, time.Now())
	p.Count.HandoversMade.Add(1)
}

func (p *p2p) Inspect(r *Request, report func(string)) {
	if p.Role != RolePrefill {
		return
	}
	if _, present := kvparams.ParseP2P(r.KV, "remote_decoder"); !present {
		report("kv_transfer_params has no remote_decoder")
	}
	if r.HTTP.Header.Get(HeaderRank) == "" {
		report("no X-data-parallel-rank")
	}
}
