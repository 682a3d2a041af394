package proxy

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/pdmesh/pdmesh/internal/logging"
)

// followSignals changes the level of the log by signals: SIGUSR1 lets it say one step
// more, SIGUSR2 goes back to the level of the start.
func followSignals(ctx context.Context, level *logging.Level) {
	came := make(chan os.Signal, 8)
	signal.Notify(came, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(came)
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-came:
			if s == syscall.SIGUSR1 {
				level.More()
			} else {
				level.Reset()
			}
		}
	}
}
