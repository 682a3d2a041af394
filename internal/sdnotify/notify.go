package sdnotify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// The states that systemd knows; join several with a newline.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	watchdog = "WATCHDOG=1"
)

// The variables of the protocol. A child must not inherit them, or it speaks in
// its parent's name.
const (
	EnvSocket       = "NOTIFY_SOCKET"
	EnvWatchdogUsec = "WATCHDOG_USEC"
	EnvWatchdogPID  = "WATCHDOG_PID"
)

// ErrSocket means that $NOTIFY_SOCKET cannot be used.
var ErrSocket = errors.New("NOTIFY_SOCKET")

// sendTimeout bounds one datagram: systemd may be busy, and we do not wait for it
// for long. The time also passes while this process gets no processor, and a
// READY=1 that is not sent costs the whole start.
const sendTimeout = 5 * time.Second

// Notifier sends to one socket. The zero value and nil send nothing. It is safe
// for concurrent use.
type Notifier struct {
	addr     *net.UnixAddr
	interval time.Duration // of the watchdog's pings; 0 = none is wanted
}

// New reads the environment; lookupEnv is os.LookupEnv or stands for it, pid is
// this process. Without $NOTIFY_SOCKET it gives a Notifier that does nothing.
// An error means that the variables are there and make no sense; the Notifier
// that comes with it does what is left.
func New(lookupEnv func(string) (string, bool), pid int) (*Notifier, error) {
	n := &Notifier{}
	path, _ := lookupEnv(EnvSocket)
	switch {
	case path == "":
		return n, nil
	case path[0] == '@': // an abstract name; the kernel's spelling begins with NUL
		n.addr = &net.UnixAddr{Name: path, Net: "unixgram"}
	case path[0] == '/':
		n.addr = &net.UnixAddr{Name: path, Net: "unixgram"}
	default:
		return n, fmt.Errorf("%w: %q is neither a path nor an abstract name", ErrSocket, path)
	}
	usec, _ := lookupEnv(EnvWatchdogUsec)
	if usec == "" {
		return n, nil
	}
	if owner, _ := lookupEnv(EnvWatchdogPID); owner != "" && owner != strconv.Itoa(pid) {
		return n, nil // meant for another process
	}
	v, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || v <= 0 || v > int64(100*365*24*time.Hour/time.Microsecond) {
		return n, fmt.Errorf("%w: WATCHDOG_USEC %q is no number of microseconds", ErrSocket, usec)
	}
	n.interval = max(time.Duration(v)*time.Microsecond/2, time.Millisecond)
	return n, nil
}

// Enabled tells whether there is anybody to notify.
func (n *Notifier) Enabled() bool { return n != nil && n.addr != nil }

// Send tells systemd one or more states. It does not wait longer than a second.
func (n *Notifier) Send(states ...string) error {
	if !n.Enabled() {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, n.addr)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSocket, err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return fmt.Errorf("%w: %w", ErrSocket, err)
	}
	if _, err := conn.Write([]byte(strings.Join(states, "\n"))); err != nil {
		return fmt.Errorf("%w: %w", ErrSocket, err)
	}
	return nil
}

// Status is the state that shows a line of text in systemctl status.
func Status(text string) string {
	return "STATUS=" + strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// ExtendTimeout is the state that asks for that much time to start or to stop.
func ExtendTimeout(d time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10)
}

// Watch feeds the watchdog until ctx ends, if systemd wants one. Before each
// ping sane is asked, with a deadline of the ping's interval; while it says an
// error, or does not answer, no ping is sent. report hears of every change from
// sane to not and back, nil for back. sane is asked one call at a time; Watch
// returns when the last one has, so sane must heed its ctx.
func (n *Notifier) Watch(ctx context.Context, sane func(context.Context) error, report func(error)) {
	if !n.Enabled() || n.interval == 0 {
		return
	}
	tick := time.NewTicker(n.interval)
	defer tick.Stop()
	well := true
	for {
		cctx, cancel := context.WithTimeout(ctx, n.interval)
		err := sane(cctx)
		cancel()
		if err == nil && ctx.Err() == nil {
			err = n.Send(watchdog)
		}
		if ctx.Err() != nil {
			return
		}
		if (err == nil) != well {
			well = err == nil
			report(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
