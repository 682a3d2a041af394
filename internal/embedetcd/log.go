package embedetcd

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
)

func orSilent(log logrus.FieldLogger) logrus.FieldLogger {
	if log != nil {
		return log
	}
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	return silent
}

// logger routes etcd's lines into ours, and drops them once we stop: an orderly
// stop makes it complain about its own closed listeners.
func (s *Server) logger(log logrus.FieldLogger, fatal func(why string)) *zap.Logger {
	options := []zap.Option{zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return &untilQuiet{Core: c, quiet: s.quiet}
	})}
	if fatal != nil {
		options = append(options, zap.WithFatalHook(lastWord{fatal}), zap.WithPanicHook(lastWord{fatal}))
	}
	return etcd.ZapLogger(log, zapcore.WarnLevel).WithOptions(options...)
}

// lastWord hears the lines after which etcd ends.
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

// beside tells etcd's warnings that are beside the point here: about load on a
// shared port that one machine's fleet does not make, about the tokens of users, which
// etcd itself makes up and nobody else has to believe, and about the version of its own
// files, which it looks for before it has written them when the machine is busy.
func beside(message string) bool {
	for _, known := range []string{
		"Running http and grpc server on single port", "simple token is not cryptographically signed",
		"Failed to detect schema version", "failed to update storage version",
	} {
		if strings.HasPrefix(message, known) {
			return true
		}
	}
	return false
}

// refused tells that a line is about a request which the client expects to be refused:
// whoever writes an audit entry asks for the lease of the day, which mostly exists.
func refused(message string, fields []zapcore.Field) bool {
	if message != "failed to apply request" {
		return false
	}
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && strings.Contains(err.Error(), "lease already exists") {
			return true
		}
	}
	return false
}

// untilQuiet is a zap core with an off switch.
type untilQuiet struct {
	zapcore.Core
	quiet *atomic.Bool
}

func (u *untilQuiet) Enabled(l zapcore.Level) bool { return !u.quiet.Load() && u.Core.Enabled(l) }

func (u *untilQuiet) With(f []zapcore.Field) zapcore.Core {
	return &untilQuiet{Core: u.Core.With(f), quiet: u.quiet}
}

func (u *untilQuiet) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !u.Enabled(e.Level) || beside(e.Message) {
		return ce
	}
	return ce.AddCore(e, u)
}

func (u *untilQuiet) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if refused(e.Message, fields) {
		return nil
	}
	return u.Core.Write(e, fields) //nolint:wrapcheck // it is that of the core
}
