// Command bench measures what the way through a proxy costs, and writes the
// report. See bench/README.md.
package main

import (
	"github.com/pdmesh/pdmesh/bench/command"
	"github.com/pdmesh/pdmesh/internal/cli"
)

func main() { cli.Main(command.Run) }
