package cli

import (
	"os"
	"syscall"
	"testing"
)

// The first signal ends the context. SIGINT, or a second signal, closes Hurry, too.
func TestSignals(t *testing.T) {
	t.Parallel()
	sigs := make(chan os.Signal)
	ctx, stop := withSignals(t.Context(), sigs)
	defer stop()
	sigs <- syscall.SIGTERM
	<-ctx.Done()
	select {
	case <-Hurry(ctx):
		t.Error("SIGTERM closed Hurry")
	default:
	}
	sigs <- syscall.SIGTERM
	<-Hurry(ctx)

	ctx, stop = withSignals(t.Context(), sigs)
	defer stop()
	sigs <- os.Interrupt
	<-ctx.Done()
	<-Hurry(ctx)
}
