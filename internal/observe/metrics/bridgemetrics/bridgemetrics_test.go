package bridgemetrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent/zmqregister"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/bridgemetrics"
)

func TestBridge(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(bridgemetrics.Collector(func() zmqregister.Counts {
		return zmqregister.Counts{Instances: 1, Pings: 2, Refused: 3, Registrations: 4, Lost: 5}
	}))
	families, err := reg.Gather()
	require.NoError(t, err)
	want := map[string]float64{
		"pd_zmq_register_instances": 1, "pd_zmq_register_pings_total": 2, "pd_zmq_register_refused_total": 3,
		"pd_zmq_register_registrations_total": 4, "pd_zmq_register_lost_total": 5,
	}
	for _, f := range families {
		m := f.GetMetric()[0]
		got := m.GetGauge().GetValue() + m.GetCounter().GetValue()
		assert.True(t, got == want[f.GetName()], "%s is %v, want %v", f.GetName(), got, want[f.GetName()])
	}
	assert.Equal(t, len(want), len(families))
}
