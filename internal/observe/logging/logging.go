package logging

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// Field names of structured log lines, common to all programs.
const (
	FieldAttempt   = "attempt"    // number of a try for one request, from 1
	FieldComponent = "component"  // the part of the program that logs: watcher, registrar, forward, etcd
	FieldConnector = "connector"  // KV-transfer dialect
	FieldDuration  = "duration"   // elapsed time
	FieldEndpoint  = "endpoint"   // host:port of anything but an instance, e.g. etcd
	FieldError     = "error"      // same key as logrus' WithError
	FieldInstance  = "instance"   // host:port of an instance
	FieldKey       = "key"        // key in etcd
	FieldLease     = "lease"      // lease id in hexadecimal, as etcdctl prints it
	FieldModel     = "model"      // model name
	FieldPhase     = "phase"      // phase of an agent or a registration
	FieldReason    = "reason"     // human-readable cause
	FieldRequestID = "request_id" // the client's id of a request
	FieldRevision  = "revision"   // revision of the etcd store
	FieldRole      = "role"       // prefill or decode
	FieldState     = "state"      // state of a record or of a state machine
	FieldStatus    = "status"     // HTTP status
)

// TextTime is the format of times in the text format.
const TextTime = "2006-01-02T15:04:05.000Z07:00"

// The values of New's argument format.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// Errors of New; each lists the valid values.
var (
	ErrLevel  = errors.New("unknown log level")
	ErrFormat = errors.New("unknown log format")
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
		return nil, fmt.Errorf("%w %q: use text or json", ErrFormat, format)
	}
	return log, nil
}

func parseLevel(s string) (logrus.Level, error) {
	switch strings.ToLower(s) {
	case "error":
		return logrus.ErrorLevel, nil
	case "warn", "warning":
		return logrus.WarnLevel, nil
	case "", "info":
		return logrus.InfoLevel, nil
	case "debug":
		return logrus.DebugLevel, nil
	case "trace":
		return logrus.TraceLevel, nil
	}
	return 0, fmt.Errorf("%w %q: use %s", ErrLevel, s, strings.Join(Levels(), ", "))
}

// serial serializes writes: the lock of the logger does not cover other users of Out.
type serial struct {
	mu sync.Mutex // held during a write to w
	w  io.Writer
}

func (s *serial) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}
