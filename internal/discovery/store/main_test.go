package store_test

import (
	"testing"

	"github.com/pdmesh/pdmesh/internal/testkit"
	"github.com/pdmesh/pdmesh/internal/testkit/leak"
)

func TestMain(m *testing.M) {
	testkit.MaybeRunEtcd()
	leak.Main(m)
}
