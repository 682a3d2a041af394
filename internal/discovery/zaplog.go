package discovery

import (
	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// ZapLogger makes a zap logger, which the etcd libraries insist on, that writes
// into log. They talk a lot: what they call information is debugging to us, and
// nothing comes out above limit, since the etcd client calls a lost connection
// a warning on each try. A nil log drops everything.
func ZapLogger(log logrus.FieldLogger, limit zapcore.Level) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return zap.New(&logrusCore{log: log, limit: limit})
}

// logrusCore is a zapcore.Core on top of logrus.
type logrusCore struct {
	log   logrus.FieldLogger
	limit zapcore.Level
}

func (c *logrusCore) Enabled(zapcore.Level) bool { return true }

func (c *logrusCore) With(fields []zapcore.Field) zapcore.Core {
	return &logrusCore{log: c.log.WithFields(toLogrus(fields)), limit: c.limit}
}

func (c *logrusCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return ce.AddCore(e, c)
}

func (c *logrusCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	log := c.log.WithFields(toLogrus(fields))
	switch level := min(e.Level, c.limit); {
	case level >= zapcore.ErrorLevel:
		log.Error(e.Message)
	case level == zapcore.WarnLevel:
		log.Warn(e.Message)
	default:
		log.Debug(e.Message)
	}
	return nil
}

func (c *logrusCore) Sync() error { return nil }

func toLogrus(fields []zapcore.Field) logrus.Fields {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	return logrus.Fields(enc.Fields)
}
