// Command demo shows the whole of pdmesh on one machine, without a GPU: it
// starts a fleet, asks it something, breaks a part of it, and shows that it
// goes on.
package main

import (
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/fleet/demo"
)

func main() { cli.Main(demo.Run) }
