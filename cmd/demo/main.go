// Command demo starts a fleet on one machine, without a GPU, sends requests,
// kills a part of the fleet, and shows that requests still succeed.
package main

import (
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/fleet/demo"
)

func main() { cli.Main(demo.Run) }
