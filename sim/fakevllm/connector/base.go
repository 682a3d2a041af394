package connector

import (
	"context"
	"net"

	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// base is what all connectors have, and what one does that does nothing.
type base struct {
	Config
	Life
}

func (b *base) Start(context.Context) error    { return nil }
func (b *base) Announce() error                { return nil }
func (b *base) Close()                         {}
func (b *base) Refuse(context.Context, []byte) {}
func (b *base) Inspect(*Request, func(string)) {}
func (b *base) Handovers(int) (none Handovers) { return none }
func (b *base) EndLeases(int)                  {}
func (b *base) Port(int) int                   { return 0 }
func (b *base) Addresses() Addresses           { return b.At }

// quiet is a leg that does nothing.
type quiet struct{}

func (quiet) Begin(*Request) *pydantic.Error { return nil }
func (quiet) Await(*Request) bool            { return true }
func (quiet) Prefilled(*Request)             {}
func (quiet) End(*Request, string, bool)     {}
func (quiet) Drop(*Request)                  {}

// promptHash is how engines tell prompts apart.
func promptHash(ids []int) uint64 {
	g := model.NewGenerator(ids, 0)
	return g.Hash()
}

// refuse notes a load that has failed; recompute reports whether the prompt is computed here.
func (b *base) refuse(r *Request, err error) (recompute bool) {
	b.Count.Refuse(r.ID, err)
	if b.Policy == PolicyFail {
		r.Failed = true
		return false
	}
	b.Count.Recomputed.Add(1)
	return true
}

// mislead notes that a request reads the blocks of another prompt.
func (b *base) mislead(r *Request, why string) {
	r.WrongKV = true
	b.Count.Mislead(r.ID, why)
}

func (b *base) countLocal(r *Request) { b.Count.LocalPrefills.Add(int64(len(r.Prompts))) }

// loaded notes that the first prompt is there.
func (b *base) loaded(r *Request) {
	b.Count.HandoversLoaded.Add(1)
	r.Cached = len(r.Prompts[0]) - 1
}

func (b *base) violate(r *Request, what string) {
	b.Count.Violate("%s engine, %s: %s", b.Role, r.ID, what)
}

func (b *base) reused(r *Request, transferID, why string) {
	b.Count.Reuse("%s engine, %s: transfer_id %q: %s", b.Role, r.ID, transferID, why)
}

// crash is the end of an engine whose connector fails an assertion.
func (b *base) crash() *pydantic.Error {
	b.Count.Crashes.Add(1)
	b.Crash()
	return pydantic.InternalError()
}

// advertised is where other engines reach a side channel.
func (b *base) advertised(side *transfer.Side) (host string, port int) {
	host = b.SideChannelHost
	if host == "" {
		host, _, _ = net.SplitHostPort(side.Addr())
	}
	return host, side.Port()
}
