package connector

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// ledgers are the hand-overs of an engine's ranks and the side channels by which decodes
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
		l.Shared.Join(r.Ledger)
	}
	return nil
}

// Close ends them.
func (l *ledgers) Close() {
	for i := range l.ranks {
		if r := &l.ranks[i]; r.side != nil {
			l.Shared.Leave(r.Ledger)
			r.side.Close()
		}
	}
}

func (l *ledgers) Port(rank int) int { return l.ranks[rank].side.Port() }

func (l *ledgers) Handovers(rank int) (h Handovers) {
	h.Waiting, h.Expired = l.ranks[rank].Counts(time.Now())
	return h
}

func (l *ledgers) EndLeases(rank int) { l.Handovers(rank) }

// of is the rank that a request was given to.
func (l *ledgers) of(r *Request) *rank { return &l.ranks[r.Engine.Core.Rank] }
