// Command replay sends a recorded trace through a whole fleet on this machine
// and checks every answer to the last byte.
package main

import (
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/fleet/replay"
)

func main() { cli.Main(replay.Run) }
