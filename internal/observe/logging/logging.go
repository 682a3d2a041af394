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

// Field names of structured log lines: one word for one thing everywhere.
const (
	FieldAttempt   = "attempt"    // number of a try for one request, from 1
	FieldComponent = "component"  // the part of the program that speaks: watcher, registrar, forward, etcd
	FieldConnector = "connector"  // KV-transfer dialect
	FieldDuration  = "duration"   // how long something took
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

// The values New takes for format.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// Errors of New; each says what would have been right.
var (
	ErrLevel  = errors.New("unknown log level")
	ErrFormat = errors.New("unknown log format")
)

// Levels lists the levels New takes, the most silent first.
func Levels() []string { return []string{"error", "warn", "info", "debug", "trace"} }

// New builds a logger that writes to w. level is one of Levels ("" means
// info; "warning" is taken too), format is "text" (the default for "") or
// "json". The text form is never coloured, so that what is shown on a terminal
// and what lands in a file are the same bytes. The logger may be used by
// several goroutines, and so may its Out by a caller that writes other lines; w
// sees one write at a time.
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

// serial lets one write through at a time: the logger holds its own lock only.
type serial struct {
	mu sync.Mutex // held for a write to w, which is what it is for
	w  io.Writer
}

func (s *serial) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}
