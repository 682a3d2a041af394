package connector_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
)

func TestPairKeyMismatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b connector.PairKey
		want string
	}{
		{connector.PairKey{"nixl", "1", 16}, connector.PairKey{"nixl", "1", 16}, ""},
		{connector.PairKey{"nixl", "1", 16}, connector.PairKey{"nixl", "", 0}, ""},
		{connector.PairKey{"nixl", "1", 16}, connector.PairKey{"p2p", "1", 16}, bypass.ConnectorMismatch},
		{connector.PairKey{"nixl", "1", 16}, connector.PairKey{"nixl", "2", 32}, bypass.VersionMismatch},
		{connector.PairKey{"nixl", "", 16}, connector.PairKey{"nixl", "2", 32}, bypass.BlockMismatch},
	} {
		got, back := c.a.Mismatch(c.b), c.b.Mismatch(c.a)
		assert.True(t, got == c.want && back == c.want, "%v, %v: %q and %q, want %q", c.a, c.b, got, back, c.want)
	}
	d := newDialect(t, "p2p")
	got := connector.PairKeyOf(d, &instance.Instance{Record: instance.Record{BlockSize: 48}})
	assert.True(t, got == (connector.PairKey{"p2p", "", 48}), "%+v", got)
}
