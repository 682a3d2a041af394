package memory

import (
	"testing"

	"github.com/pdmesh/pdmesh/internal/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
