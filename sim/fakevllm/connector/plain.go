package connector

import (
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// plain is the KV pool of plain mode: prefill stores what decode finds.
type plain struct {
	base
	quiet
}

// Leg has no state.
func (p *plain) Leg(*Request) Leg { return p }

func (p *plain) Begin(r *Request) *pydantic.Error {
	for _, ids := range r.Prompts {
		if p.Shared.Has(promptHash(ids)) {
			r.Cached += (len(ids) - 1) / kvcache.DefaultBlockSize * kvcache.DefaultBlockSize
			continue
		}
		if p.Role != RolePrefill {
			p.Count.LocalPrefills.Add(1)
		}
	}
	return nil
}

func (p *plain) Prefilled(r *Request) {
	for _, ids := range r.Prompts {
		p.Shared.Store(promptHash(ids))
	}
}

func (p *plain) Inspect(r *Request, report func(string)) {
	if r.KV != nil {
		report("kv_transfer_params in plain mode")
	}
}
