package connector

import (
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// plain is for engines that share a KV pool. Their requests have no transfer params.
type plain struct{ base }

func (plain) Name() string     { return Default }
func (plain) SharesPool() bool { return true }

// Unfit: the pool has the KV cache of a prefill on any route, however it ends.
func (plain) Unfit(openai.Kind, Pair) string { return "" }

func (plain) Prefill(r *request.Request, p Pair) Leg {
	e := r.NewEdit()
	prefillEdit(e, p)
	return Leg{Body: e.Body()}
}

func (plain) Decode(r *request.Request, p Pair, _ TransferParams) Leg { return DecodeOnly(r, p) }
