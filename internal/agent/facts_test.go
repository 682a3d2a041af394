package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// The record has the engine's ranks and its KV transfer, even while the
// metrics cannot be read; settings of the agent take precedence.
func TestRanksAndTransferOfTheEngine(t *testing.T) {
	for _, tc := range []struct {
		name  string
		base  instance.Record
		stats vllm.Stats
		later error // of its metrics, later
		want  instance.Record
	}{
		{"nothing known", instance.Record{}, vllm.Stats{Ranks: 1}, nil, instance.Record{}},
		{"NIXL found", instance.Record{}, vllm.Stats{NIXL: true, Ranks: 1}, nil, instance.Record{Connector: "nixl", Transfer: "nixl"}},
		{"NIXL found once", instance.Record{}, vllm.Stats{NIXL: true, Ranks: 4}, errors.New("no metrics now"), instance.Record{Connector: "nixl", Transfer: "nixl", DPSize: 4}},
		{"another connector is set", instance.Record{Connector: "plain"}, vllm.Stats{NIXL: true}, nil, instance.Record{Connector: "plain", Transfer: "nixl"}},
		{"no metrics", instance.Record{DPSize: 2, Transfer: "nixl", Connector: "nixl"}, vllm.Stats{}, nil, instance.Record{DPSize: 2, Transfer: "nixl", Connector: "nixl"}},
		{"fewer ranks than set", instance.Record{DPSize: 4}, vllm.Stats{Ranks: 1}, nil, instance.Record{DPSize: 1}},
		{"more", instance.Record{DPSize: 2}, vllm.Stats{Ranks: 8}, nil, instance.Record{DPSize: 8}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tc.stats.Complete = true
				log, out := silentLog(), new(testkit.Buffer)
				log.SetOutput(out)
				r := start(t, &fakeEngine{stats: tc.stats}, Options{Base: tc.base, Log: log})
				r.after(time.Second, func(e *fakeEngine) { e.loadErr = tc.later })
				r.after(10*time.Second, nil)
				got := r.Status().Record
				if got.DPSize != tc.want.DPSize || got.Transfer != tc.want.Transfer || got.Connector != tc.want.Connector {
					t.Errorf("dp_size %d, transfer %q, connector %q", got.DPSize, got.Transfer, got.Connector)
				}
				warned, want := strings.Count(out.String(), "set --connector nixl"), tc.base.Connector == "plain"
				assert.True(t, (warned == 1) == want, "warned %d times", warned)
				if said, want := strings.Count(out.String(), "data-parallel ranks; proxies choose among them"), tc.want.DPSize > 1; (said == 1) != want {
					t.Errorf("ranks named %d times", said)
				}
				r.leave()
			})
		})
	}
}
