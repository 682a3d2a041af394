package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/engine"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// The engines to choose from.
const (
	FastEngine   = "fast"
	StrictEngine = "strict"
)

// engines are those behind the targets of one cell.
type engines struct {
	prefill, decode []string
	fast            *engine.Engine
	strict          []*fakevllm.Server
}

// startEngines starts n engines, half of them for each role, at least two of
// each. The fast engine is one for all addresses.
func startEngines(ctx context.Context, kind, connector string, n int, itl time.Duration) (*engines, error) {
	half := max(n/2, 2)
	e := &engines{}
	if kind == StrictEngine {
		shared := fakevllm.NewShared()
		for i := range 2 * half {
			s, err := fakevllm.Start(ctx, fakevllm.Options{
				Models: []string{answer.Model}, Mode: fakevllm.Mode(connector), ITL: itl, Shared: shared, RecordLimit: fakevllm.RecordNone,
			})
			if err != nil {
				e.close()
				return nil, err
			}
			e.strict = append(e.strict, s)
			e.add(i < half, s.Address())
		}
		return e, nil
	}
	addrs, err := addresses(2 * half)
	if err != nil {
		return nil, err
	}
	if e.fast, err = engine.Start(ctx, engine.Options{Listen: addrs, ITL: itl}); err != nil {
		return nil, err
	}
	for i, a := range addrs {
		e.add(i < half, a)
	}
	return e, nil
}

func (e *engines) add(prefill bool, addr string) {
	if prefill {
		e.prefill = append(e.prefill, addr)
	} else {
		e.decode = append(e.decode, addr)
	}
}

// addresses finds n different ones: ports of 127.0.0.1 for a few, one port of
// many loopback addresses for many.
func addresses(n int) ([]string, error) {
	const few = 16
	ports, err := fleet.FreePorts(min(n, few))
	if err != nil {
		return nil, err
	}
	out := make([]string, n)
	for i := range out {
		if n <= few {
			out[i] = fmt.Sprintf("127.0.0.1:%d", ports[i])
		} else {
			out[i] = fmt.Sprintf("127.1.%d.%d:%d", i/200, 1+i%200, ports[0])
		}
	}
	return out, nil
}

func (e *engines) stats() engine.Stats {
	if e.fast != nil {
		return e.fast.Stats()
	}
	return engine.Stats{}
}

func (e *engines) close() {
	if e.fast != nil {
		e.fast.Close()
	}
	for _, s := range e.strict {
		s.Close()
	}
}
