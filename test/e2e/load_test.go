package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/test/harness"
)

// Short forms of the functions of package harness.

const model = harness.Model

type load struct{ *harness.Load }

func (l load) served(n int64) { l.T().Helper(); l.Served(n) }
func (l load) finish()        { l.Finish() }

func startLoad(t *testing.T, clients int, urls ...string) load {
	t.Helper()
	return load{harness.StartLoad(t, clients, 50*time.Millisecond, urls...)}
}

func newFleet(t *testing.T) *fleet.Fleet {
	t.Helper()
	return harness.NewFleet(t, binDir)
}

func newClient(t *testing.T, adminKey string) *loadgen.Client {
	t.Helper()
	return harness.NewClient(t, adminKey)
}

func complete(ctx context.Context, c *loadgen.Client, url, prompt string, tokens int) loadgen.Result {
	return harness.Complete(ctx, c, url, prompt, tokens)
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	return harness.Get(t, url)
}

func add(t *testing.T, url, key, role, address string) string {
	t.Helper()
	return harness.Add(t, url, key, role, address)
}

func metric(t *testing.T, url, name string, labels ...string) float64 {
	t.Helper()
	return harness.Metric(t, url, name, labels...)
}
