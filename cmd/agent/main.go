// Command agent is next to one vLLM engine, or in front of it, and keeps its
// registration in etcd true.
package main

import (
	"os"

	"github.com/pdmesh/pdmesh/internal/agent/program"
)

func main() {
	os.Exit(program.Main(os.Args[1:], os.Stdout, os.Stderr))
}
