package fakevllm

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/bootstrap"
	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// The legs of vLLM's MooncakeConnector know each other by transfer_id alone. The
// decode engine finds the prefill engine through its bootstrap server, and asks
// for the blocks over the side channel, which stands for ZMQ and Mooncake's
// transfer engine: see handover.Fetch.

// startMooncake does what the connector does before the request runs. The error
// is that of an engine which has died.
func (x *exchange) startMooncake(j *job) *pydantic.Error {
	l := x.life
	s := l.server
	k := kvparams.ParseMooncake(j.KV)
	j.mooncake = k
	if k.Load && s.opt.Role == RolePrefill || k.Produce && s.opt.Role == RoleDecode {
		// An assertion of the connector fails and takes the engine down.
		s.violation("%s engine, %s: a leg for the other role", s.opt.Role, x.id)
		l.count.crashes.Add(1)
		s.Kill()
		return pydantic.InternalError()
	}
	many := len(j.Prompts) > 1 || j.N > 1
	switch {
	case many && k.TransferID != "" && (k.Load || k.Produce):
		// Each of the answers has the same id, and only one of them gets the blocks.
		x.reused(k.TransferID, "several answers share it")
		if k.Load {
			j.fetching = make(chan handover.Fetched)
		}
	case k.Produce && k.TransferID == "":
		x.warnMooncake("Missing transfer_id in kv_transfer_params from router!")
	case k.Produce:
		if j.offers = l.transfers.Begin(k.TransferID); !j.offers {
			x.reused(k.TransferID, "a prefill has had it")
		}
	case k.Load && j.PromptLogprobs != nil:
		// The cache is not read for these; the pull only frees the prefill's blocks.
		if len(k.Missing) == 0 {
			l.fetches.Go(func() { _ = l.fetch(k) })
		}
		l.count.localPrefills.Add(int64(len(j.Prompts)))
	case k.Load:
		x.startFetch(j)
	case s.opt.Role != RolePrefill:
		l.count.localPrefills.Add(int64(len(j.Prompts)))
	}
	return nil
}

// startFetch asks for the blocks beside the request: a client that leaves does
// not take the question back. Where a name is missing vLLM warns that it will
// not transfer, and then waits all the same, for what nobody sends.
func (x *exchange) startFetch(j *job) {
	l, k := x.life, j.mooncake
	j.fetching = make(chan handover.Fetched, 1)
	if len(k.Missing) > 0 {
		x.warnMooncake("got invalid KVTransferParams: no " + strings.Join(k.Missing, ", "))
		return
	}
	l.fetches.Go(func() { j.fetching <- l.fetch(k) })
}

func (x *exchange) warnMooncake(why string) {
	s := x.life.server
	s.badKV.add(x.id + ": " + why)
	x.life.count.badKV.Add(1)
	s.opt.Log.WithField("request_id", x.id).Warn(why)
}

func (x *exchange) reused(transferID, why string) {
	x.life.server.violation("%s engine, %s: transfer_id %q: %s", x.life.server.opt.Role, x.id, transferID, why)
	x.life.count.reused.Add(1)
}

// awaitFetch waits until the prompt's blocks are there, or are known not to
// come; false means that the client left or the engine died.
func (x *exchange) awaitFetch(j *job) bool {
	l := x.life
	l.count.fetching.Add(1)
	defer l.count.fetching.Add(-1)
	select {
	case got := <-j.fetching:
		x.took(j, got)
		return true
	case <-x.r.Context().Done():
	case <-l.done:
	}
	return false
}

// took is the end of a load: blocks of another prompt are as good as any others
// to the engine, and its answer is wrong.
func (x *exchange) took(j *job, got handover.Fetched) {
	l := x.life
	s := l.server
	if got.Err != nil {
		s.refusals.add(x.id + ": " + got.Err.Error())
		l.count.refused.Add(1)
		if s.opt.KVLoadFailurePolicy == PolicyFail {
			j.loadErr = got.Err
			return
		}
		l.count.recomputed.Add(1)
		l.count.localPrefills.Add(int64(len(j.Prompts)))
		return
	}
	l.count.loaded.Add(1)
	j.Cached = len(j.Prompts[0]) - 1
	if g := model.NewGenerator(j.Prompts[0], 0); g.Hash() != got.Prompt {
		j.WrongKV = true
		s.refusals.add(x.id + ": " + handover.ErrPrompt.Error() + ": the answer is wrong")
		l.count.wrongKV.Add(1)
	}
}

// offer ends a prefill's part: only what ended by length can be fetched.
func (x *exchange) offer(j *job, finish string) {
	if !j.offers || finish != "length" || x.fault != nil && x.fault.Kind == fault.NoKV {
		return
	}
	j.offers = false
	g := model.NewGenerator(j.Prompts[0], 0)
	x.life.transfers.Finish(j.mooncake.TransferID, g.Hash(), time.Now())
	x.life.count.made.Add(1)
}

// withdraw is the end of a prefill that offers nothing.
func (x *exchange) withdraw(j *job) {
	if j.offers {
		x.life.transfers.Drop(j.mooncake.TransferID)
	}
}

// fetch gets the blocks of one prefill. A prefill engine that is not there any
// more is no failure until the time is over: ZMQ connects again and again.
func (l *life) fetch(k kvparams.MooncakeParams) handover.Fetched {
	ctx, cancel := l.transferContext()
	defer cancel()
	addr, err := l.peers.Find(ctx, k.EngineID, k.Bootstrap)
	if err != nil {
		return handover.Fetched{Err: err}
	}
	return handover.Fetch(ctx, addr, "PULL ="+url.QueryEscape(k.TransferID))
}

// fetchFrom asks a prefill engine whose address is known.
func (l *life) fetchFrom(addr, line string) handover.Fetched {
	ctx, cancel := l.transferContext()
	defer cancel()
	return handover.Fetch(ctx, addr, line)
}

// transferContext ends with the time that a transfer may take, or with the life.
func (l *life) transferContext() (context.Context, context.CancelFunc) {
	timeout := l.server.opt.TransferTimeout
	ctx, cancel := context.WithTimeout(context.Background(), timeout+timeout/8)
	go func() {
		select {
		case <-l.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// startProducer brings up what only a producer has: the channel by which its
// blocks are fetched, and the bootstrap server that names it.
func (s *Server) startProducer(ctx context.Context, l *life) (err error) {
	if l.side, err = handover.StartSide(ctx, s.opt.SideChannelAddr, l.transfers.Answer); err != nil {
		return err
	}
	s.mu.Lock()
	addr := s.boot
	s.mu.Unlock()
	if l.boot, err = bootstrap.Start(ctx, addr, func() { l.count.bootstrapQueries.Add(1) }); err != nil {
		return err
	}
	host, port := l.advertised(l.cores[0])
	l.boot.Register(l.engineID, "tcp://"+net.JoinHostPort(host, strconv.Itoa(port)))
	return nil
}
