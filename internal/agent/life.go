package agent

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// life tells one life of the engine process from the next.
type life struct {
	host string
	key  instance.Key

	id      string
	started time.Time // as the engine says; zero if it does not
	since   time.Time // started, or when this life was first seen
	ended   bool      // a refused probe: whatever answers next is another process
}

// refused notes that nobody listened.
func (l *life) refused() { l.ended = true }

// seen notes a good probe and reports whether it belongs to a new life.
func (l *life) seen(started time.Time) bool {
	if !l.isNew(started) {
		if l.started.IsZero() && !started.IsZero() {
			l.started, l.since = started, started // told late: the same life
		}
		return false
	}
	switch {
	case started.IsZero(), l.id != "" && started.Equal(l.started):
		l.id = ulid.Make().String()
	default:
		l.id = l.derived(started)
	}
	l.started, l.ended = started, false
	if l.since = started; started.IsZero() {
		l.since = time.Now().UTC()
	}
	return true
}

// isNew reports whether a good probe belongs to a life that was not seen yet.
func (l *life) isNew(started time.Time) bool {
	moved := !started.IsZero() && !l.started.IsZero() && !started.Equal(l.started)
	return l.id == "" || l.ended || moved
}

// derived names an engine process by where and when it started, so that an
// agent that is restarted beside a living engine finds the same incarnation
// again, and nobody forgets what he knows of it.
func (l *life) derived(started time.Time) string {
	sum := sha256.Sum256([]byte(l.host + "\x00" + l.key.String() + "\x00" + started.UTC().Format(time.RFC3339Nano)))
	var id ulid.ULID
	// Times past the year 10889 cannot occur: the engine's clock was checked when read.
	_ = id.SetTime(ulid.Timestamp(started))
	_ = id.SetEntropy(sum[:10])
	return id.String()
}

// WrongModelError is a probe of an engine that answers but serves something else.
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

func equal(a, b instance.Record) bool { return reflect.DeepEqual(a, b) }
