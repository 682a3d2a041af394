package embedetcd

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
)

// logger returns a logger that writes etcd's lines into ours, and drops them once we stop: an
// orderly stop makes etcd complain about its own closed listeners.
func (s *Server) logger(log logrus.FieldLogger, fatal func(why string)) *zap.Logger {
	options := []zap.Option{zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return &untilQuiet{Core: c, quiet: s.quiet, often: &often{last: map[string]time.Time{}, repeated: map[string]int{}}}
	})}
	if fatal != nil {
		options = append(options, zap.WithFatalHook(lastWord{fatal}), zap.WithPanicHook(lastWord{fatal}))
	}
	return etcd.ZapLogger(log, zapcore.WarnLevel).WithOptions(options...)
}

// lastWord gets the lines after which etcd ends.
type lastWord struct{ fatal func(why string) }

// OnWrite implements zapcore.CheckWriteHook.
func (w lastWord) OnWrite(ce *zapcore.CheckedEntry, fields []zapcore.Field) {
	why := []string{ce.Message}
	all := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(all)
	}
	for _, name := range []string{"path", "error", "panic"} {
		if v, ok := all.Fields[name]; ok {
			why = append(why, fmt.Sprint(v))
		}
	}
	w.fatal(strings.Join(why, ": "))
}

// untilQuiet is a zap core with an off switch. Of etcd's warnings it writes those that matter to
// an operator, as messages of this program (translate); the others, and all that etcd calls
// information, are of level debug. Errors are written as warnings of ours.
type untilQuiet struct {
	zapcore.Core
	quiet *atomic.Bool
	often *often
}

func (u *untilQuiet) With(f []zapcore.Field) zapcore.Core {
	return &untilQuiet{Core: u.Core.With(readable(f)), quiet: u.quiet, often: u.often}
}

// Check implements zapcore.Core. A warning may become a line of level debug, so that a core
// without that level still has it checked here.
func (u *untilQuiet) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if u.quiet.Load() || !u.Enabled(e.Level) {
		return ce
	}
	return ce.AddCore(e, u)
}

// Write implements zapcore.Core.
func (u *untilQuiet) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if e.Level == zapcore.WarnLevel {
		if text, plain := translate(e.Message, fields); text != "" {
			n, due := u.often.due(e.Message, e.Time)
			if !due {
				return nil
			}
			if n > 0 {
				plain = append(plain, zap.Int("repeated", n))
			}
			e.Message = text
			return u.Core.Write(e, plain) //nolint:wrapcheck // it is that of the core
		}
		if e.Level = zapcore.DebugLevel; !u.Enabled(e.Level) {
			return nil
		}
	}
	return u.Core.Write(e, readable(fields)) //nolint:wrapcheck // it is that of the core
}

// translate returns what a warning of etcd means to an operator, with its fields; "" for a
// warning that means nothing here: about one member's load on a shared port, tokens of users
// that nothing else has to accept, the version of files that etcd has yet to write, and
// requests that a client expects to be refused.
func translate(message string, fields []zapcore.Field) (text string, plain []zapcore.Field) {
	of := map[string]zapcore.Field{}
	for _, f := range fields {
		of[f.Key] = f
	}
	// slow says what took longer than expected.
	slow := func(what string, took, expected zapcore.Field) (string, []zapcore.Field) {
		t, e := time.Duration(took.Integer), time.Duration(expected.Integer)
		return fmt.Sprintf("etcd is slow: %s took %s, expected %s", what, short(t), short(e)), []zapcore.Field{zap.Stringer("took", t), zap.Stringer("expected", e)}
	}
	err, _ := of["error"].Interface.(error)
	switch message {
	case "slow fdatasync":
		return slow("fdatasync", of["took"], of["expected-duration"])
	case "apply request took too long":
		return slow("a request", of["took"], of["expected-duration"])
	case "leader failed to send out heartbeat on time; took too long, leader is overloaded likely from slow disk":
		late := time.Duration(of["exceeded-duration"].Integer)
		return "etcd is slow: its heartbeat was " + short(late) + " late", []zapcore.Field{zap.Stringer("late", late)}
	case "waiting for ReadIndex response took too long, retrying":
		waited := time.Duration(of["retry-timeout"].Integer)
		return "etcd is slow: a read has waited for " + short(waited), []zapcore.Field{zap.Stringer("waited", waited)}
	case "message exceeded backend quota; raising alarm":
		return "etcd is full: it refuses writes until there is space again", []zapcore.Field{zap.String("limit", of["quota-size"].String)}
	case "failed to apply request":
		// Who writes an audit entry creates the lease of the day, which usually exists.
		if err != nil && !strings.Contains(err.Error(), "lease already exists") {
			return "etcd refused a request", []zapcore.Field{zap.Error(err)}
		}
	}
	return "", nil
}

// readable returns fields as a person reads them: durations with their unit.
func readable(fields []zapcore.Field) []zapcore.Field {
	out := make([]zapcore.Field, len(fields))
	for i, f := range fields {
		if f.Type == zapcore.DurationType {
			f = zap.Stringer(f.Key, time.Duration(f.Integer))
		}
		out[i] = f
	}
	return out
}

// short writes a duration with two digits.
func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
}

// quietTime is how long a message that was logged is not logged again: a slow disk causes one for
// each request.
const quietTime = 10 * time.Second

// often counts messages that come too often. It is safe for concurrent use.
type often struct {
	mu       sync.Mutex
	last     map[string]time.Time
	repeated map[string]int
}

// due reports whether a message is to be logged at this time, and how often it came since the
// last time.
func (o *often) due(message string, at time.Time) (repeated int, due bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, ok := o.last[message]; ok && at.Sub(last) < quietTime {
		o.repeated[message]++
		return 0, false
	}
	repeated = o.repeated[message]
	o.last[message], o.repeated[message] = at, 0
	return repeated, true
}
