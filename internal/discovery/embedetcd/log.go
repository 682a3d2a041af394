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
	"golang.org/x/time/rate"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
)

// logger returns a logger that writes etcd's lines to the log of this program. It drops them
// during an orderly stop, when etcd reports its closed listeners as errors.
func (s *Server) logger(log logrus.FieldLogger, fatal func(why string)) *zap.Logger {
	options := []zap.Option{zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return &quietCore{Core: c, quiet: s.quiet, rateLimits: new(sync.Map)}
	})}
	if fatal != nil {
		options = append(options, zap.WithFatalHook(fatalHook{fatal}), zap.WithPanicHook(fatalHook{fatal}))
	}
	return etcd.ZapLogger(log, zapcore.WarnLevel).WithOptions(options...)
}

// fatalHook is a hook that receives the log lines after which etcd exits.
type fatalHook struct{ fatal func(why string) }

// OnWrite implements zapcore.CheckWriteHook.
func (w fatalHook) OnWrite(ce *zapcore.CheckedEntry, fields []zapcore.Field) {
	why := []string{ce.Message}
	all := etcd.Fields(fields)
	for _, name := range []string{"path", "error", "panic"} {
		if v, ok := all[name]; ok {
			why = append(why, fmt.Sprint(v))
		}
	}
	w.fatal(strings.Join(why, ": "))
}

// quietCore is a zap core that can be turned off. It writes the warnings of etcd that matter to
// an operator as messages of this program (translate). Other warnings and information are
// written at level debug, and errors as warnings.
type quietCore struct {
	zapcore.Core
	quiet      *atomic.Bool
	rateLimits *sync.Map // *rate.Sometimes by the message of etcd
}

func (u *quietCore) With(f []zapcore.Field) zapcore.Core {
	return &quietCore{Core: u.Core.With(readable(f)), quiet: u.quiet, rateLimits: u.rateLimits}
}

// Check implements zapcore.Core. It accepts every warning, although some are written at level
// debug, because only Write translates them.
func (u *quietCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if u.quiet.Load() || !u.Enabled(e.Level) {
		return ce
	}
	return ce.AddCore(e, u)
}

// Write implements zapcore.Core.
func (u *quietCore) Write(e zapcore.Entry, fields []zapcore.Field) (err error) {
	if e.Level == zapcore.WarnLevel || e.Message == "failed to update storage version" { // an error in etcd
		if text, plain := translate(e.Message, fields); text != "" {
			often, _ := u.rateLimits.LoadOrStore(e.Message, &rate.Sometimes{Interval: quietTime})
			e.Message = text
			often.(*rate.Sometimes).Do(func() { err = u.Core.Write(e, plain) })
			return err
		}
		if e.Level = zapcore.DebugLevel; !u.Enabled(e.Level) {
			return nil
		}
	}
	return u.Core.Write(e, readable(fields)) //nolint:wrapcheck // it is that of the core
}

// translate returns the message for an operator that corresponds to a warning of etcd, with its
// fields; "" for a warning that does not apply to this use of etcd: gRPC and HTTP on one port,
// simple tokens with a single member, the storage version before its first write, and requests
// whose refusal the client expects.
func translate(message string, fields []zapcore.Field) (text string, plain []zapcore.Field) {
	of := map[string]zapcore.Field{}
	for _, f := range fields {
		of[f.Key] = f
	}
	// slow returns the message that an operation took longer than expected.
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
		// Each writer of an audit entry tries to create the lease of the day, which usually exists.
		if err != nil && !strings.Contains(err.Error(), "lease already exists") {
			return "etcd refused a request", []zapcore.Field{zap.Error(err)}
		}
	}
	return "", nil
}

// readable returns the fields with durations as text with a unit.
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

// short formats a duration with two digits.
func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
}

// quietTime is the least time between two log entries with the same message: a slow disk causes
// one for each request.
const quietTime = 10 * time.Second
