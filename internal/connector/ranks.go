package connector

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// headerRank names the data-parallel rank that a request is for. vLLM refuses a rank that
// the engine does not have.
const headerRank = "X-data-parallel-rank"

// Pinned returns the header of a leg to one rank of an instance with several ranks.
func Pinned(in *instance.Instance, rank int) []Field {
	if in == nil || in.Ranks() == 1 {
		return nil
	}
	return []Field{{headerRank, strconv.Itoa(rank)}}
}

// tooManyRanks returns the error for an instance with more ranks than the proxy
// distinguishes. It is for dialects whose legs name the address of the other leg's rank:
// with such an instance they could use only rank 0.
func tooManyRanks(in *instance.Instance) error {
	if n := in.Record.DPSize; n > instance.MaxRanks {
		return fmt.Errorf("its engine has %d data-parallel ranks, and legs of this connector can name %d: divide it into instances of fewer ranks", n, instance.MaxRanks)
	}
	return nil
}

// ranked pins both legs of a dialect to the chosen ranks, unless the dialect has done so,
// so that no dialect can forget it.
type ranked struct{ Dialect }

// Prefill implements Dialect.
func (d ranked) Prefill(r *request.Request, p Pair) Leg {
	return pinnedTo(d.Dialect.Prefill(r, p), p.Prefill, p.PrefillRank)
}

// Decode implements Dialect.
func (d ranked) Decode(r *request.Request, p Pair, h TransferParams) Leg {
	return pinnedTo(d.Dialect.Decode(r, p, h), p.Decode, p.DecodeRank)
}

func pinnedTo(l Leg, in *instance.Instance, rank int) Leg {
	if !slices.ContainsFunc(l.Header, func(f Field) bool { return strings.EqualFold(f.Name, headerRank) }) {
		l.Header = append(l.Header, Pinned(in, rank)...)
	}
	return l
}
