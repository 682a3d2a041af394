package proxy

import (
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// A model that is served under the name of a route takes precedence, unless it is one of the route's targets.
func TestDecodeModelRoutes_ServedName(t *testing.T) {
	t.Parallel()
	for value, own := range map[string]bool{
		`{"v":1,"targets":[{"model":"y"}]}`:               false,
		`{"v":1,"targets":[{"model":"x"},{"model":"y"}]}`: true,
	} {
		documents := &instance.Documents{List: []instance.Document{{Key: instance.Key{Role: schema.Models, Address: "x"}, Value: []byte(value)}}}
		routes := decodeModelRoutes(logrus.New())(documents)
		require.Len(t, routes, 1, value)
		assert.Equal(t, own, routes[0].Own, value)
	}
}
