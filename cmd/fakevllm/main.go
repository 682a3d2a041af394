// Command fakevllm serves the GPU-free engine of package fakevllm.
package main

import (
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/fakevllm/command"
)

func main() { cli.Main(command.Run) }
