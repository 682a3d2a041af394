// Command bench measures the cost of a request through the proxy and other targets. See
// bench/README.md.
package main

import (
	"github.com/pdmesh/pdmesh/bench/command"
	"github.com/pdmesh/pdmesh/internal/cli"
)

func main() { cli.Main(command.Run) }
