package connector

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// nixl are vLLM's NixlConnector, pull and push, and vllm-ascend's: prefill answers with
// kv_transfer_params, and decode fetches by them.
type nixl struct{ *ledgers }

// Leg knows what the request asked for.
func (n *nixl) Leg(*Request) Leg { return &nixlLeg{n: n} }

type nixlLeg struct {
	quiet
	n      *nixl
	params kvparams.NIXLParams
}

// Begin loads what the request names. An engine that would have crashed answers an error.
func (l *nixlLeg) Begin(r *Request) *pydantic.Error {
	n := l.n
	l.params = kvparams.ParseNIXL(r.KV, n.Mode)
	local := n.Role != RolePrefill
	switch l.params.Form {
	case kvparams.Produce:
		local = false
	case kvparams.Fatal:
		n.Count.BadParam(r.ID, l.params.Why)
		n.Count.Crashes.Add(1)
		return pydantic.InternalError()
	case kvparams.Bad:
		n.Count.BadParam(r.ID, l.params.Why)
		n.Log.WithField("request_id", r.ID).Warnf("got invalid KVTransferParams: %s", l.params.Why)
		if local {
			n.Count.Recomputed.Add(1)
		}
	case kvparams.Load:
		if len(r.Prompts) > 1 || r.N > 1 || r.PromptLogprobs != nil {
			// An assertion of the connector fails for such a request and takes
			// the whole engine down (CVE-2026-94623).
			n.Count.Crashes.Add(1)
			return pydantic.InternalError()
		}
		if err := l.load(r); err != nil {
			n.refuse(r, err)
			return nil
		}
		n.loaded(r)
		local = false
	case kvparams.Absent:
	}
	if local {
		n.countLocal(r)
	}
	return nil
}

// load fetches the blocks. Pull is a one-sided read: after the end of the lease the present
// content of the blocks is taken for the prompt's, and the answer is wrong. The same happens if
// prefill has restarted with the same engine id.
func (l *nixlLeg) load(r *Request) error {
	err := l.fetch(r)
	if l.n.Mode == kvparams.NIXL && (errors.Is(err, transfer.ErrExpired) || l.n.FixedID && isUnknown(err)) {
		l.n.mislead(r, err.Error())
		return nil
	}
	return err
}

// isUnknown reports whether a peer does not know the request, as after a restart with the same id.
func isUnknown(err error) bool {
	return err != nil && strings.Contains(err.Error(), transfer.ErrUnknown.Error()) // the side channel sends the text
}

// fetch takes it over the side channel.
func (l *nixlLeg) fetch(r *Request) error {
	n, c := l.n, l.params.Claim
	c.Prompt, c.Base, c.Version = promptHash(r.Prompts[0]), n.meeting(r), n.handshake()
	if c.Token == "" && !n.RewrittenParams {
		return transfer.ErrTampered
	}
	addr := net.JoinHostPort(l.params.Host, strconv.Itoa(l.params.Port))
	return transfer.Ask(r.HTTP.Context(), addr, transfer.Question{Op: "take", Claim: c})
}

// meeting is the id by which the two legs know each other. In push mode that is the
// engine's own, which the kind of the route is a part of.
func (n *nixl) meeting(r *Request) string {
	if n.Mode == kvparams.NIXLPush {
		return r.ID
	}
	return r.Base
}

// End registers the finished prefill and renders its transfer params. Only the first of several
// prompts has them.
func (l *nixlLeg) End(r *Request, finish string, answered bool) {
	n := l.n
	back := n.Bidirectional && n.Role == RoleDecode
	if !answered || r.NoKV || l.params.Form != kvparams.Produce && !back || !n.handsOver(finish) {
		return
	}
	requestID := r.ID + "-" + model.Hex16(model.Mix(uint64(time.Now().UnixNano())))[:8]
	h := transfer.Offer{Prompt: promptHash(r.Prompts[0]), Token: kvparams.NewToken(), Free: r.Engine.Detach()}
	if r.HTTP.Header.Get("X-Request-Id") != "" {
		h.Base = n.meeting(r)
	}
	token := h.Token
	if n.RewrittenParams {
		h.Token = ""
	}
	rank := n.of(r)
	rank.Put(requestID, h, time.Now())
	n.Count.TransfersMade.Add(1)
	host, port := n.advertised(rank.side)
	r.TransferParams = kvparams.AppendNIXL(make([]byte, 0, 768), n.Mode, rank.EngineID, requestID, host, port, len(r.Prompts[0]), token)
}

// handsOver reports whether a prefill's blocks are kept after this finish reason.
func (n *nixl) handsOver(finish string) bool {
	return finish == "length" || finish == "stop" && n.Mode != kvparams.Ascend
}

// Refuse has prefill free the blocks of a request that this engine refuses: since
// vLLM 0.21 a request that only frees them runs in its place.
func (n *nixl) Refuse(ctx context.Context, kv []byte) {
	if n.Mode == kvparams.Ascend || Minor(n.Version) < 21 {
		return
	}
	k := kvparams.ParseNIXL(kv, n.Mode)
	if k.Form != kvparams.Load {
		return
	}
	_ = transfer.Ask(ctx, net.JoinHostPort(k.Host, strconv.Itoa(k.Port)), transfer.Question{Op: "free", Claim: k.Claim}) // else its lease ends
}

// Minor returns the second number of a version of vLLM, 0 if there is none.
func Minor(version string) int {
	rest, _ := strings.CutPrefix(version, "0.")
	rest, _, _ = strings.Cut(rest, ".")
	n, err := strconv.Atoi(rest)
	if err != nil {
		return 0
	}
	return n
}

func (n *nixl) Inspect(r *Request, report func(string)) {
	produces := kvparams.ParseNIXL(r.KV, n.Mode).Form == kvparams.Produce
	switch {
	case n.Role == RolePrefill && !produces:
		report("kv_transfer_params has not the prefill form")
	case n.Role == RoleDecode && produces:
		report("kv_transfer_params has the prefill form")
	}
}

// ledgers are the offers of an engine's ranks and the side channels by which decodes
// fetch them, as NIXL and P2P have them.
type ledgers struct {
	base
	ranks []rank
}

type rank struct {
	*transfer.Ledger
	side *transfer.Side // nil until it is started
}

func newLedgers(b base) *ledgers {
	l := &ledgers{base: b}
	for _, id := range b.EngineIDs {
		l.ranks = append(l.ranks, rank{Ledger: transfer.NewLedger(id, b.handshake(), b.Lease, b.Mode == kvparams.P2P, b.Mode == kvparams.NIXLPush)})
	}
	return l
}

// handshake is the version that a peer must have, too, "" if that does not matter.
func (b *base) handshake() string {
	if b.Mode != kvparams.NIXL && b.Mode != kvparams.NIXLPush {
		return ""
	}
	return b.Version
}

// Start brings up the side channels, that of each rank at the first one's port plus
// its number where that is configured.
func (l *ledgers) Start(ctx context.Context) error {
	host, first, err := net.SplitHostPort(l.SideChannelAddr)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(first)
	if err != nil {
		return err
	}
	for i := range l.ranks {
		at := 0
		if port > 0 {
			at = port + i
		}
		r := &l.ranks[i]
		if r.side, err = transfer.StartSide(ctx, net.JoinHostPort(host, strconv.Itoa(at)), r.Answer); err != nil {
			return err
		}
	}
	return nil
}

// Close ends them.
func (l *ledgers) Close() {
	for i := range l.ranks {
		l.ranks[i].side.Close()
	}
}

func (l *ledgers) Port(rank int) int { return l.ranks[rank].side.Port() }

func (l *ledgers) Transfers(rank int) (h Transfers) {
	h.Waiting, h.Expired = l.ranks[rank].Counts(time.Now())
	return h
}

// of is the rank that a request was given to.
func (l *ledgers) of(r *Request) *rank { return &l.ranks[r.Engine.Core.Rank] }

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
			p.Count.BadParam(r.ID, "remote_prefiller is incomplete")
		}
		if p.Role != RolePrefill {
			p.countLocal(r)
		}
		return nil
	}
	c := transfer.Claim{RequestID: from.ID, Prompt: promptHash(r.Prompts[0])}
	addr := net.JoinHostPort(from.Host, strconv.Itoa(from.Port))
	if err := transfer.Ask(r.HTTP.Context(), addr, transfer.Question{Op: "take", Claim: c}); err != nil {
		p.refuse(r, err)
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
	p.Count.TransfersMade.Add(1)
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
