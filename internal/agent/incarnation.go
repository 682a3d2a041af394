package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// incarnation identifies the process of the engine: its incarnation.
type incarnation struct {
	host string
	key  instance.Key

	id      string
	started time.Time // as the engine reports; zero if it does not
	since   time.Time // started, or the time of the first good probe
	ended   bool      // after a refused probe: the next answer is from another process
}

// refused records a refused probe.
func (l *incarnation) refused() { l.ended = true }

// observe records a good probe and reports whether it is from a new process.
func (l *incarnation) observe(started time.Time) bool {
	if !l.isNew(started) {
		if l.started.IsZero() && !started.IsZero() {
			l.started, l.since = started, started // the same process, whose start time is now known
		}
		return false
	}
	switch {
	case started.IsZero(), l.id != "" && started.Equal(l.started):
		l.id = ulid.Make().String()
	default:
		l.id = l.deriveID(started)
	}
	l.started, l.ended = started, false
	if l.since = started; started.IsZero() {
		l.since = time.Now().UTC()
	}
	return true
}

// isNew reports whether a good probe is from a process that was not seen yet.
func (l *incarnation) isNew(started time.Time) bool {
	moved := !started.IsZero() && !l.started.IsZero() && !started.Equal(l.started)
	return l.id == "" || l.ended || moved
}

// deriveID returns an id from host, key and start time of the engine process. It stays the same if
// the agent restarts while the engine runs, so proxies keep the state of the incarnation.
func (l *incarnation) deriveID(started time.Time) string {
	sum := sha256.Sum256([]byte(l.host + "\x00" + l.key.String() + "\x00" + started.UTC().Format(time.RFC3339Nano)))
	var id ulid.ULID
	// Times past the year 10889 cannot occur: the engine's clock was checked when read.
	_ = id.SetTime(ulid.Timestamp(started))
	_ = id.SetEntropy(sum[:10])
	return id.String()
}

// WrongModelError is the error of a probe of an engine that serves another model.
type WrongModelError struct {
	Want string
	Have []string
}

func (e *WrongModelError) Error() string {
	return fmt.Sprintf("the engine serves %s, not %s: start it with that model or change --model",
		strings.Join(printable(e.Have), ", "), instance.Printable(e.Want, 128))
}

// printable bounds and escapes model names for log lines.
func printable(models []string) []string {
	const most = 8
	out := make([]string, 0, min(len(models), most+1))
	for i, m := range models {
		if i == most {
			out = append(out, fmt.Sprintf("... %d more", len(models)-most))
			break
		}
		out = append(out, instance.Printable(m, 128))
	}
	return out
}

// HostID returns an id of this machine and network namespace, in which an address such as
// 127.0.0.1:8100 is unique. Two containers on one machine have different ids. A restarted
// agent has the same id, so it may take over the key of its dead predecessor.
//
// The id is a hash, because the machine id is confidential (machine-id(5)). root is the file
// system of the machine, os.DirFS("/") in a program; readlink is os.Readlink or a
// replacement.
func HostID(root fs.FS, readlink func(string) (string, error)) (string, error) {
	machine := ""
	// The boot id is for images without a machine id. It changes with a reboot, which no
	// registration survives.
	for _, name := range []string{"etc/machine-id", "var/lib/dbus/machine-id", "proc/sys/kernel/random/boot_id"} {
		raw, err := fs.ReadFile(root, name)
		if id := strings.TrimSpace(string(raw)); err == nil && id != "" && id != "uninitialized" {
			machine = id
			break
		}
	}
	if machine == "" {
		name, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("this machine has neither machine id, boot id nor host name (set --host-id): %w", err)
		}
		machine = name
	}
	ns, err := readlink("/proc/self/ns/net")
	if err != nil {
		ns = "" // not Linux, or no /proc: one network per machine
	}
	sum := sha256.Sum256([]byte("pd-host\x00" + machine + "\x00" + ns))
	return hex.EncodeToString(sum[:8]), nil
}
