// Command fleetbench replays recorded traffic to simulated engines with finite KV
// caches, through our proxy with each policy and through other routers.
package main

import (
	"github.com/pdmesh/pdmesh/bench/ground/command"
	"github.com/pdmesh/pdmesh/internal/cli"
)

func main() { cli.Main(command.Run) }
