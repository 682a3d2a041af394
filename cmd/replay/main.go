// Command replay sends a recorded trace through a fleet on this machine and
// compares every byte of every answer with the expected one.
package main

import (
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/fleet/replay"
)

func main() { cli.Main(replay.Run) }
