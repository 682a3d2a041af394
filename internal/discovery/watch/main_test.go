package watch_test

import (
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) {
	leak.Main(m)
}
