package connector

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// transferring is what Mooncake and MoRI-IO have in common: the legs of a request know each
// other by transfer_id, and a decode that comes first waits for its prefill.
type transferring struct {
	base
	transfers *transfer.Rendezvous // nil of a Mooncake decode
	side      *transfer.Side       // likewise
}

// keep makes room for transfers.
func (t *transferring) keep() {
	t.transfers = transfer.NewRendezvous(t.TransferTimeout, t.Done, func(id string) {
		t.Count.Reuse("%s engine: transfer_id %q: a decode has had it", t.Role, id)
	})
}

func (t *transferring) Port(int) int { return t.side.Port() }

func (t *transferring) Transfers(int) (h Transfers) {
	if t.transfers != nil {
		h.Waiting, h.Expired = t.transfers.Counts(time.Now())
	}
	h.Pulls = t.transfers.Asked()
	return h
}

// context ends with the time that a transfer may take, or with the life.
func (t *transferring) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), t.TransferTimeout+t.TransferTimeout/8)
	go func() {
		select {
		case <-t.Done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// transferLeg is one leg: a prefill that offers its blocks, or a decode that loads.
type transferLeg struct {
	t        *transferring
	id       string                // of a prefill's transfer
	offers   bool                  // a decode may fetch its blocks
	fetching chan transfer.Fetched // of a decode that loads
}

// produce begins a prefill's transfer.
func (l *transferLeg) produce(r *Request, id string) {
	l.id = id
	if l.offers = l.t.transfers.Begin(id); !l.offers {
		l.t.reused(r, id, "a prefill has had it")
	}
}

// share notes that each of several answers has the same id, and only one of them gets
// the blocks.
func (l *transferLeg) share(r *Request, id string, load bool) {
	l.t.reused(r, id, "several answers share it")
	if load {
		l.fetching = make(chan transfer.Fetched)
	}
}

// fetch asks for the blocks beside the request: a client that leaves does
// not take the question back.
func (l *transferLeg) fetch(ask func() transfer.Fetched) {
	fetching := make(chan transfer.Fetched, 1)
	l.fetching = fetching
	l.t.Work.Go(func() { fetching <- ask() })
}

// Await waits until the prompt's blocks are there, or are known not to come.
func (l *transferLeg) Await(r *Request) bool {
	if l.fetching == nil {
		return true
	}
	waiting := &l.t.Count.WaitingForKV
	waiting.Add(1)
	defer waiting.Add(-1)
	select {
	case got := <-l.fetching:
		l.take(r, got)
		return true
	case <-r.Engine.Life.Client:
	case <-r.Engine.Life.Engine:
	}
	return false
}

// take is the end of a load: blocks of another prompt are as good as any others
// to the engine, and its answer is wrong.
func (l *transferLeg) take(r *Request, got transfer.Fetched) {
	if got.Err != nil {
		l.t.refuse(r, got.Err)
		return
	}
	l.t.loaded(r)
	if promptHash(r.Prompts[0]) != got.Prompt {
		l.t.mislead(r, transfer.ErrPrompt.Error())
	}
}

func (l *transferLeg) Prefilled(*Request) {}

// End is the end of a prefill's part: only what ended by length can be fetched.
func (l *transferLeg) End(r *Request, finish string, _ bool) { l.offer(r, finish) }

func (l *transferLeg) offer(r *Request, finish string) (offered bool) {
	if !l.offers || finish != "length" || r.NoKV {
		return false
	}
	l.offers = false
	l.t.transfers.Finish(l.id, promptHash(r.Prompts[0]), time.Now())
	l.t.Count.TransfersMade.Add(1)
	return true
}

// Drop is the end of a prefill that offers nothing.
func (l *transferLeg) Drop(*Request) {
	if l.offers {
		l.t.transfers.Drop(l.id)
	}
}
