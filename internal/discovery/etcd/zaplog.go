package etcd

import (
	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// ZapLogger returns a zap logger for the etcd libraries, which writes to log. Their info lines get
// level debug, and levels above limit are lowered to limit: the etcd client logs a warning for each
// attempt to reconnect. A nil log drops everything.
func ZapLogger(log logrus.FieldLogger, limit zapcore.Level) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return zap.New(&logrusCore{log: log.WithFields(nil), limit: limit})
}

// logrusCore is a zapcore.Core on top of logrus.
type logrusCore struct {
	log   *logrus.Entry
	limit zapcore.Level
}

// Enabled keeps etcd from formatting messages that are dropped: at level debug, it describes each
// change of its store in full, twice.
func (c *logrusCore) Enabled(l zapcore.Level) bool { return c.log.Logger.IsLevelEnabled(c.level(l)) }

// level returns the logrus level for a level of zap.
func (c *logrusCore) level(l zapcore.Level) logrus.Level {
	switch l = min(l, c.limit); {
	case l >= zapcore.ErrorLevel:
		return logrus.ErrorLevel
	case l == zapcore.WarnLevel:
		return logrus.WarnLevel
	default:
		return logrus.DebugLevel
	}
}

func (c *logrusCore) With(fields []zapcore.Field) zapcore.Core {
	return &logrusCore{log: c.log.WithFields(Fields(fields)), limit: c.limit}
}

func (c *logrusCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *logrusCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.WithFields(Fields(fields)).Log(c.level(e.Level), e.Message)
	return nil
}

func (c *logrusCore) Sync() error { return nil }

// Fields returns the fields of a log line of etcd.
func Fields(fields []zapcore.Field) logrus.Fields {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	return logrus.Fields(enc.Fields)
}
