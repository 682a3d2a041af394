// Command pdctl is the operator's tool: see internal/pdctl.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/pdmesh/pdmesh/internal/pdctl"
)

func main() { os.Exit(run(context.Background(), os.Args[1:])) }

func run(ctx context.Context, args []string) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return pdctl.Run(ctx, args, os.Stdout, os.Stderr, os.LookupEnv)
}
