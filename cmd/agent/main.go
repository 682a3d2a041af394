// Command agent registers one vLLM engine in etcd and keeps the registration up to
// date. It can also start the engine.
package main

import (
	"os"

	"github.com/pdmesh/pdmesh/internal/agent/program"
)

func main() {
	os.Exit(program.Main(os.Args[1:], os.Stdout, os.Stderr))
}
