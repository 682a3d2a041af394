// Package sdnotify reports the state of a service to systemd with go-systemd's daemon
// package (sd_notify(3)). Without $NOTIFY_SOCKET every function does nothing.
package sdnotify

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"
)

// The variables of the protocol. A child process must not inherit them, because it would
// report as its parent.
const (
	EnvSocket       = "NOTIFY_SOCKET"
	EnvWatchdogUsec = "WATCHDOG_USEC"
	EnvWatchdogPID  = "WATCHDOG_PID"
)

// Enabled reports whether systemd waits for notifications.
func Enabled() bool { return os.Getenv(EnvSocket) != "" }

// Send sends one or more states to systemd, such as daemon.SdNotifyReady.
func Send(states ...string) error {
	if _, err := daemon.SdNotify(false, strings.Join(states, "\n")); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}

// Notify is Send for states that nothing depends on: it logs an error.
func Notify(log logrus.FieldLogger, states ...string) {
	if err := Send(states...); err != nil {
		log.WithError(err).Debug("cannot notify systemd")
	}
}

// Status returns the state that shows a line of text in systemctl status.
func Status(text string) string {
	return "STATUS=" + strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// ExtendTimeout returns the state that requests d more time to start or to stop.
func ExtendTimeout(d time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10)
}

// Watchdog feeds systemd's watchdog at half of its interval until ctx ends. Before each ping it calls sane
// with a deadline of that interval, and sends no ping while sane fails or does not return; it logs when
// that begins. It returns at once if systemd has no watchdog for this process, and logs a warning if the
// variables are invalid.
func Watchdog(ctx context.Context, program string, sane func(context.Context) error, log logrus.FieldLogger) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.WithError(fmt.Errorf("watchdog of systemd: %w", err)).Warn("no watchdog")
		return
	}
	if !Enabled() || interval == 0 {
		return
	}
	interval = max(interval/2, time.Millisecond)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	healthy := true
	for {
		checkCtx, cancel := context.WithTimeout(ctx, interval)
		err := sane(checkCtx)
		cancel()
		if err == nil && ctx.Err() == nil {
			err = Send(daemon.SdNotifyWatchdog)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil && healthy {
			log.WithError(err).Error(program + " is stuck: no more watchdog pings")
		}
		healthy = err == nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
