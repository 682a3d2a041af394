package connector

import (
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
)

// base has the properties that most dialects share. Dialects embed it, and define those that differ.
type base struct{}

func (base) Flow() Flow                                    { return Sequential }
func (base) Lacks(*instance.Instance) error                { return nil }
func (base) Unfit(k openai.Kind, p Pair) string            { return tooOld(k, p) }
func (base) TransferParams([]byte) (TransferParams, error) { return TransferParams{}, nil }
func (base) SharesPool() bool                              { return false }
func (base) Terms(*instance.Instance) Terms                { return Terms{} }
func (base) NeedsPrefill() bool                            { return false }
func (base) Rewriter(TransferParams) Rewriter              { return nil }

// prefillBody returns the body of a prefill leg with transfer params.
func prefillBody(r *request.Request, p Pair, params string) splice.Body {
	e := r.NewEdit()
	prefillEdit(e, p)
	e.Set(request.FieldKVTransferParams, params)
	return e.Body()
}

// decodeBody returns the body of a decode leg with transfer params.
func decodeBody(r *request.Request, p Pair, params string) splice.Body {
	e := decodeEdit(r, p)
	e.Set(request.FieldKVTransferParams, params)
	return e.Body()
}
