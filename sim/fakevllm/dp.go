package fakevllm

import (
	"context"
	"net"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvevents"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// Data-parallel ranks are engine cores behind one address. Each has a queue, a cache, an
// engine id and a side channel of its own; a header chooses one.

const headerRank = "X-data-parallel-rank"

// addCores makes the cores of a life. vLLM tells the ids of ranks apart by their ends.
func (l *life) addCores(e *kvevents.Publisher) {
	o := &l.server.opt
	base := l.engineID
	for rank := range o.DPSize {
		id := base
		if o.DPSize > 1 {
			id = base + "_dp" + strconv.Itoa(rank)
		}
		l.cores = append(l.cores, newCore(o, rank, id, e))
		e = nil // of the first alone
	}
	l.engineID = l.cores[0].engineID
}

// startSides brings up the side channels, that of each rank at the first one's port plus
// its number where that is configured.
func (s *Server) startSides(ctx context.Context, l *life) error {
	host, first, err := net.SplitHostPort(s.opt.SideChannelAddr)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(first)
	if err != nil {
		return err
	}
	for _, c := range l.cores {
		at := 0
		if port > 0 {
			at = port + c.rank
		}
		if c.side, err = handover.StartSide(ctx, net.JoinHostPort(host, strconv.Itoa(at)), c.ledger.Answer); err != nil {
			return err
		}
		s.opt.Shared.Join(c.ledger)
	}
	return nil
}

// chooseRank takes the core that the request names, or the next one. What is no number is
// ignored, as by vLLM.
func (x *exchange) chooseRank() error {
	l := x.life
	n := len(l.cores)
	rank, err := strconv.Atoi(strings.TrimSpace(x.r.Header.Get(headerRank)))
	switch {
	case err != nil:
		rank = int((l.turn.Add(1) - 1) % uint64(n)) //nolint:gosec // a handful
	case rank < 0 || rank >= n:
		return pydantic.BadRequest("", nil, "data_parallel_rank %d is out of range [0, %d).", rank, n)
	}
	x.core = l.cores[rank]
	x.core.requests.Add(1)
	return nil
}

func (l *life) sum(of func(*core) int64) (all int64) {
	for _, c := range l.cores {
		all += of(c)
	}
	return all
}

// Rank is one data-parallel rank in the present life.
type Rank struct {
	EngineID    string `json:"engine_id"`
	SideChannel int    `json:"side_channel,omitempty"`
	Requests    int64  `json:"requests"` // that it was given
}

// Ranks reads them all, in their order.
func (s *Server) Ranks() []Rank {
	var out []Rank
	for _, c := range s.current().cores {
		r := Rank{EngineID: c.engineID, Requests: c.requests.Load()}
		if c.side != nil {
			r.SideChannel = c.side.Port()
		}
		out = append(out, r)
	}
	return out
}

// SetDPSize is how many ranks the next life has.
func (s *Server) SetDPSize(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opt.DPSize = max(n, 1)
}
