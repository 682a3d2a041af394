// Command fleet runs the services of docker-compose.yml as plain processes of
// this machine: up, down, status. scripts/fleet builds what it needs and calls
// it.
package main

import (
	"context"
	"io"
	"os"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/compose/local"
)

func main() {
	cli.Main(func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return local.Run(ctx, args, os.LookupEnv, stdout, stderr)
	})
}
