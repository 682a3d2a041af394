package program

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/sirupsen/logrus"
)

// signals has the signals of the program: the first one drains, each later one skips the
// current wait.
type signals struct {
	skipWait chan struct{}
	sig      atomic.Int32 // the first one; 0 if the drain was not ordered by a signal
}

// stopSignal returns the signal for the engine: SIGINT if the program got that, else SIGTERM.
func (o *signals) stopSignal() syscall.Signal {
	if s := syscall.Signal(o.sig.Load()); s == syscall.SIGINT {
		return s
	}
	return syscall.SIGTERM
}

// maxSignals is the number of buffered signals.
const maxSignals = 4

// listen receives signals until stop is called, which waits. The first signal, or a call of
// drain, ends the returned context.
func listen(ctx context.Context, log logrus.FieldLogger) (out context.Context, o *signals, drain func(), stop func()) {
	o = &signals{skipWait: make(chan struct{}, maxSignals)}
	sigs := make(chan os.Signal, maxSignals)
	signal.Notify(sigs, syscall.SIGTERM, syscall.SIGINT)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signal.Notify(sigs, syscall.SIGHUP)
	}
	out, drain = context.WithCancel(ctx)
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for first := true; ; first = false {
			select {
			case s := <-sigs:
				if first {
					if n, ok := s.(syscall.Signal); ok {
						o.sig.Store(int32(n))
					}
					log.Infof("%s: draining; a second signal skips the wait", s)
					drain()
					continue
				}
				log.Warnf("%s again: not waiting for the engine", s)
				select {
				case o.skipWait <- struct{}{}:
				default:
				}
			case <-over:
				return
			}
		}
	}()
	return out, o, drain, func() { signal.Stop(sigs); drain(); close(over); <-done }
}
