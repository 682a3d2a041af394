package proxy

import (
	"testing"

	"github.com/sirupsen/logrus"

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
		if len(routes) != 1 || routes[0].Own != own {
			t.Errorf("%s: %+v", value, routes)
		}
	}
}
