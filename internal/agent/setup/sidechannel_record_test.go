package setup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The record has the side channel ports of the ranks that are started here, next to other ports.
func TestRecord_SideChannel(t *testing.T) {
	t.Parallel()
	other := map[string][]int{instance.PortBootstrap: {8998}}
	for _, tc := range []struct {
		name string
		side sideChannel
		want map[string][]int
	}{
		{"no NIXL engine of ours", sideChannel{}, map[string][]int{instance.PortBootstrap: {8998}}},
		{"one rank", sideChannel{port: 5600, count: 1}, map[string][]int{instance.PortBootstrap: {8998}, instance.PortNIXL: {5600}}},
		{"ranks 2 and 3", sideChannel{port: 5600, first: 2, count: 2}, map[string][]int{instance.PortBootstrap: {8998}, instance.PortNIXL: {5602, 5603}}},
	} {
		c := Config{Facts: instance.Record{Ports: other}, Side: tc.side}
		got := c.Record()
		d := cmp.Diff(tc.want, got.Ports)
		assert.Equal(t, "", d, "%s (-want +got)\n%s", tc.name, d)
	}
	assert.Len(t, other, 1, "the facts have changed")
}
