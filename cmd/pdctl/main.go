// Command pdctl is the operator's tool: see internal/pdctl.
package main

import (
	"context"
	"io"
	"os"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/pdctl"
)

func main() {
	cli.Main(func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return pdctl.Run(cli.WithVariables(ctx, os.Environ()), args, stdout, stderr, settings.LookupEnv)
	})
}
