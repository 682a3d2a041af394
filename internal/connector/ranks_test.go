package connector_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// An instance with more ranks than the proxy distinguishes is refused if a leg must name the rank of the
// other one. Otherwise all its requests would go to rank 0.
func TestRanks_MoreThanDistinguished(t *testing.T) {
	t.Parallel()
	for _, name := range connector.Names() {
		d := newDialect(t, name)
		moriio := strings.HasPrefix(name, connector.MoRIIO)
		for role, refused := range map[instance.Role]bool{
			instance.Prefill: moriio || name == "mooncake" || name == "p2p",
			instance.Decode:  moriio,
		} {
			in := pair().Prefill
			if role == instance.Decode {
				in = pair().Decode
			}
			in.Record.EngineIDs = nil // the proxy queries its bootstrap server for them
			for ranks, refused := range map[int]bool{instance.MaxRanks: false, instance.MaxRanks + 1: refused} {
				in.Record.DPSize = ranks
				err := d.Lacks(in)
				if says := err != nil && strings.Contains(err.Error(), strconv.Itoa(ranks)+" data-parallel ranks"); says != refused || (err != nil) != refused {
					t.Errorf("%s, %s of %d ranks: %v", name, role, ranks, err)
				}
			}
		}
	}
}
