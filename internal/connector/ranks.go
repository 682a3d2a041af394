package connector

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// headerRank is how engines are told which of their data-parallel ranks a request is
// for. vLLM refuses a number that it does not have.
const headerRank = "X-data-parallel-rank"

// Pinned is the header of a leg to one rank of an instance that has several.
func Pinned(in *instance.Instance, rank int) []Field {
	if in == nil || in.Ranks() == 1 {
		return nil
	}
	return []Field{{headerRank, strconv.Itoa(rank)}}
}

// tooManyRanks tells of an instance with more ranks than are told apart. It is for the
// dialects whose legs say where the rank of the other leg listens: of such an instance
// they could use rank 0 only.
func tooManyRanks(in *instance.Instance) error {
	if n := in.Record.DPSize; n > instance.MaxRanks {
		return fmt.Errorf("its engine has %d data-parallel ranks, and legs of this connector can name %d: divide it into instances of fewer ranks", n, instance.MaxRanks)
	}
	return nil
}

// ranked pins both legs of a dialect to the ranks that were chosen, where the dialect
// has not done so: no dialect can forget it.
type ranked struct{ Dialect }

// Prefill implements Dialect.
func (d ranked) Prefill(r *request.Request, p Pair) Leg {
	return pinnedTo(d.Dialect.Prefill(r, p), p.Prefill, p.PrefillRank)
}

// Decode implements Dialect.
func (d ranked) Decode(r *request.Request, p Pair, h Handover) Leg {
	return pinnedTo(d.Dialect.Decode(r, p, h), p.Decode, p.DecodeRank)
}

func pinnedTo(l Leg, in *instance.Instance, rank int) Leg {
	if !slices.ContainsFunc(l.Header, func(f Field) bool { return strings.EqualFold(f.Name, headerRank) }) {
		l.Header = append(l.Header, Pinned(in, rank)...)
	}
	return l
}
