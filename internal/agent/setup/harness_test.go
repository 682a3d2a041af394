package setup

import (
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const patience = time.Minute
