package program

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/sirupsen/logrus"
)

// orders are what signals ask of the program: the first one to drain, each
// later one to stop waiting for whatever is being waited for.
type orders struct {
	more chan struct{}
	sig  atomic.Int32 // the first one; 0 if the order came another way
}

// stopSignal is what an engine is told to end with: what a terminal sent, or SIGTERM.
func (o *orders) stopSignal() syscall.Signal {
	if s := syscall.Signal(o.sig.Load()); s == syscall.SIGINT {
		return s
	}
	return syscall.SIGTERM
}

// maxOrders is how many impatient signals are kept.
const maxOrders = 4

// listen takes signals until stop is called, which waits. The context it gives
// ends with the first one, or by drain.
func listen(ctx context.Context, wrapping bool, log logrus.FieldLogger) (out context.Context, o *orders, drain func(), stop func()) {
	o = &orders{more: make(chan struct{}, maxOrders)}
	sigs := make(chan os.Signal, maxOrders)
	signal.Notify(sigs, syscall.SIGTERM, syscall.SIGINT)
	// The engine has a group of its own and does not hear of a terminal that is
	// closed. Under nohup the signal is ignored and stays so.
	if wrapping && !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(sigs, syscall.SIGHUP)
	}
	out, drain = context.WithCancel(ctx)
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-sigs:
			if n, ok := s.(syscall.Signal); ok {
				o.sig.Store(int32(n))
			}
			log.Infof("%s: draining; a second signal skips the wait", s)
			drain()
		case <-out.Done():
		}
		for {
			select {
			case s := <-sigs:
				log.Warnf("%s again: not waiting for the engine", s)
				select {
				case o.more <- struct{}{}:
				default:
				}
			case <-over:
				return
			}
		}
	}()
	return out, o, drain, func() { signal.Stop(sigs); drain(); close(over); <-done }
}
