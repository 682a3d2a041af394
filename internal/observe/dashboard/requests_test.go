package dashboard

import (
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Requests are counted by their outcome, and for the instance that began their stream, whichever of its ranks
// that was.
func TestRequests(t *testing.T) {
	t.Parallel()
	p, d := instance.Key{Role: instance.Prefill, Address: "10.0.0.1:1"}, instance.Key{Role: instance.Decode, Address: "[fd00::1]:2"}
	for outcome, want := range map[string]end{
		relay.OutcomeOK: served, relay.OutcomeClientError: refused, relay.OutcomeClientGone: refused,
		relay.OutcomeUnavailable: failed, relay.OutcomeUpstream: failed, relay.OutcomeBroken: failed,
	} {
		var r requests
		of := map[instance.Key]*timed{p: {}, d: {}}
		r.of.Store(&of)
		r.done(&forward.Entry{
			Outcome: outcome, BeganPrefill: p.Address, BeganDecode: d.Address + "#3", Decode: "10.0.0.3:1", DecodeOnly: "n", FirstToken: time.Second, Gap: time.Millisecond, Input: 3, Output: 2,
		})
		for is := range ends {
			if n := r.ends[is].Load(); (n == 1) != (is == want) {
				t.Errorf("%s: %d requests of end %d", outcome, n, is)
			}
		}
		if r.alone.Load() != 1 || r.input.Load() != 3 || r.output.Load() != 2 {
			t.Errorf("%s: alone %d, tokens %d and %d", outcome, r.alone.Load(), r.input.Load(), r.output.Load())
		}
		for name, l := range map[string]*latency{"prefill": &of[p].first, "decode": &of[d].first, "between": &of[d].between} {
			if _, n := new(counted).since(l); (n == 1) != (want == served) {
				t.Errorf("%s: %d times of %s", outcome, n, name)
			}
		}
	}
}
