// Command fakevllm runs a simulated vLLM engine, which needs no GPU.
package main

import (
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/fakevllm/command"
)

func main() { cli.Main(command.Run) }
