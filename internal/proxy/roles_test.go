package proxy

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
)

func TestStale(t *testing.T) {
	t.Parallel()
	live := watch.Status{State: watch.Live}
	kept := live
	kept.Kept = []string{"override/prefill/10.0.0.1:8100"} // possibly a role
	for _, tc := range []struct {
		name    string
		status  watch.Status
		off     bool
		digests metrics.Digests
		want    string
	}{
		{"up to date", live, false, metrics.Digests{Used: 2}, ""},
		{"no etcd", watch.Status{}, false, metrics.Digests{}, "etcd does not answer"},
		{"etcd replaced", kept, false, metrics.Digests{}, "etcd was replaced, and keys are kept"},
		{"digests off", live, true, metrics.Digests{}, "load digests are off"},
		{"old digest", live, false, metrics.Digests{Old: 1}, "a load digest is old, or of a newer release"},
		{"newer digest", live, false, metrics.Digests{Ignored: 1}, "a load digest is old, or of a newer release"},
	} {
		assert.Equal(t, tc.want, stale(tc.status, !tc.off, tc.digests), tc.name)
	}
}
