package metrics_test

import (
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/observe/metrics"
)

func TestBodies(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	metrics.Bodies(func() (int64, int64, int64) { return 3, 7, 2 }).Register(reg)
	want := map[string]float64{
		"pd_request_bodies_bytes": 3, "pd_request_bodies_limit_bytes": 7, "pd_request_bodies_refused_total": 2,
	}
	got := gathered(t, reg)
	assert.True(t, maps.Equal(got, want), "got %v, want %v", got, want)
}
