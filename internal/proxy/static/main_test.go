package static_test

import (
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) {
	testkit.MaybeRunEtcd()
	leak.Main(m)
}
