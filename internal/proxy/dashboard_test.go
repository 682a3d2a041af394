package proxy

import (
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/observe/dashboard"
)

// Requests are counted for the instance, whichever of its ranks they were sent to.
func TestSample(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[string]dashboard.End{
		forward.OutcomeOK: dashboard.Served, forward.OutcomeClientError: dashboard.Refused, forward.OutcomeClientGone: dashboard.Refused,
		forward.OutcomeUnavailable: dashboard.Failed, forward.OutcomeUpstream: dashboard.Failed, forward.OutcomeBroken: dashboard.Failed,
	} {
		got := sample(&forward.Entry{
			Outcome: outcome, Prefill: "10.0.0.1:1", Decode: "[fd00::1]:2#3", DecodeOnly: "n", FirstToken: time.Second, Gap: time.Millisecond,
		})
		is := dashboard.Sample{
			Prefill: "10.0.0.1:1", Decode: "[fd00::1]:2", End: want, Alone: true,
			FirstToken: time.Second, BetweenTokens: time.Millisecond,
		}
		if got != is {
			t.Errorf("%s: %+v, want %+v", outcome, got, is)
		}
	}
}
