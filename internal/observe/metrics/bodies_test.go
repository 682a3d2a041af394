package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/observe/metrics"
)

func TestBodies(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	metrics.Bodies{Memory: func() (int64, int64, int64) { return 3, 7, 2 }}.Register(reg)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"pd_request_bodies_bytes": 3, "pd_request_bodies_limit_bytes": 7, "pd_request_bodies_refused_total": 2,
	}
	for _, f := range families {
		m := f.GetMetric()[0]
		if got := m.GetGauge().GetValue() + m.GetCounter().GetValue(); got != want[f.GetName()] {
			t.Errorf("%s is %v, want %v", f.GetName(), got, want[f.GetName()])
		}
	}
	if len(families) != len(want) {
		t.Errorf("%d families, want %d", len(families), len(want))
	}
}
