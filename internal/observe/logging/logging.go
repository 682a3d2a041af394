package logging

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// Field names of structured log lines, common to all programs.
const (
	FieldComponent = "component"  // the part of the program that logs: watcher, registrar, forward, etcd
	FieldInstance  = "instance"   // host:port of an instance
	FieldModel     = "model"      // model name
	FieldReason    = "reason"     // human-readable cause
	FieldRequestID = "request_id" // the client's id of a request
	FieldRevision  = "revision"   // revision of the etcd store
	FieldRole      = "role"       // prefill or decode
	FieldStatus    = "status"     // HTTP status
)

// TextTime is the format of times in the text format.
const TextTime = "2006-01-02T15:04:05.000Z07:00"

// The values of New's argument format.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// Levels lists the levels that New accepts, the least verbose first.
func Levels() []string { return []string{"error", "warn", "info", "debug", "trace"} }

// New returns a logger that writes to w. level is one of Levels ("" means
// info; "warning" is accepted, too), format is "text" (the default for "") or
// "json". The text form is never coloured, so that terminals and files receive
// the same bytes. The logger and its Out are safe for concurrent use; w receives
// one write at a time.
func New(w io.Writer, level, format string) (*logrus.Logger, error) {
	log := logrus.New()
	log.SetOutput(&serial{w: w})
	lv, err := parseLevel(level)
	if err != nil {
		return nil, err
	}
	log.SetLevel(lv)
	switch strings.ToLower(format) {
	case "", FormatText:
		log.SetFormatter(&logrus.TextFormatter{
			DisableColors:   true,
			FullTimestamp:   true,
			TimestampFormat: TextTime,
		})
	case FormatJSON:
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	default:
		return nil, fmt.Errorf("unknown log format %q: use text or json", format)
	}
	return log, nil
}

func parseLevel(s string) (logrus.Level, error) {
	level, err := logrus.ParseLevel(cmp.Or(s, "info"))
	if err != nil || level < logrus.ErrorLevel {
		return 0, fmt.Errorf("unknown log level %q: use %s", s, strings.Join(Levels(), ", "))
	}
	return level, nil
}

// serial serializes writes: the lock of the logger does not cover other users of Out.
type serial struct {
	mu     sync.Mutex // held during a write to w
	w      io.Writer
	keep   bool
	recent []byte // the last lines, at most twice maxRecent
}

func (s *serial) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keep {
		if len(s.recent)+len(p) > 2*maxRecent {
			s.recent = append(s.recent[:0], newest(s.recent)...)
		}
		s.recent = append(s.recent, newest(p)...)
	}
	return s.w.Write(p)
}

// maxRecent bounds the lines that the function of KeepRecent returns, in bytes.
const maxRecent = 256 << 10

// newest returns the last lines of text, at most maxRecent bytes.
func newest(text []byte) []byte {
	if len(text) > maxRecent {
		text = text[len(text)-maxRecent:]
		text = text[bytes.IndexByte(text, '\n')+1:]
	}
	return text
}

// KeepRecent makes a logger of New keep its last lines, of which recent returns at most 256 KiB.
func KeepRecent(log *logrus.Logger) (recent func() []byte) {
	s, ok := log.Out.(*serial)
	if !ok {
		return func() []byte { return nil }
	}
	s.keep = true
	return func() []byte {
		s.mu.Lock()
		defer s.mu.Unlock()
		return bytes.Clone(newest(s.recent))
	}
}

// Level is the level of a logger, which may be changed while the logger is used. It is
// safe for concurrent use.
type Level struct {
	log   *logrus.Logger
	first logrus.Level
}

// NewLevel returns the Level of a logger.
func NewLevel(log *logrus.Logger) *Level { return &Level{log: log, first: log.GetLevel()} }

// Name returns the current level, one of Levels.
func (l *Level) Name() string { return nameOf(l.log.GetLevel()) }

// Set changes the level to one of Levels.
func (l *Level) Set(name string) error {
	to, err := parseLevel(name)
	if err != nil {
		return err
	}
	l.set(to)
	return nil
}

// More raises the verbosity by one level.
func (l *Level) More() { l.set(min(l.log.GetLevel()+1, logrus.TraceLevel)) }

// Reset restores the initial level.
func (l *Level) Reset() { l.set(l.first) }

func (l *Level) set(to logrus.Level) {
	if was := l.log.GetLevel(); was != to {
		l.log.SetLevel(to)
		l.log.Logf(min(to, logrus.WarnLevel), "the log level is %s now, it was %s", nameOf(to), nameOf(was))
	}
}

// nameOf returns the name of a level as New accepts it.
func nameOf(level logrus.Level) string {
	if level == logrus.WarnLevel {
		return "warn" // logrus says warning
	}
	return level.String()
}
