// Package accesslog writes one line per request. Prompts and keys are never
// part of it.
package accesslog

import (
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/logging"
)

// Log writes access lines to a logger.
type Log struct {
	log logrus.FieldLogger
}

// New builds a Log.
func New(log logrus.FieldLogger) *Log { return &Log{log: log} }

// Write logs one finished request.
func (l *Log) Write(e *forward.Entry) {
	f := logrus.Fields{
		logging.FieldRequestID: e.RequestID,
		logging.FieldStatus:    e.Status,
		logging.FieldRevision:  e.Revision,
		"client":               e.Client,
		"method":               e.Method,
		"path":                 e.Path,
		"model":                instance.Printable(e.Model, 200),
		"stream":               e.Stream,
		"outcome":              e.Outcome,
		"failed_legs":          e.Attempts,
		"bytes_in":             e.BytesIn,
		"bytes_out":            e.BytesOut,
		"ms":                   milliseconds(e.Duration),
	}
	set := func(key, value string) {
		if value != "" {
			f[key] = value
		}
	}
	set("prefill", e.Prefill)
	set("decode", e.Decode)
	set("alone", e.Alone)
	set("failure", string(e.Failure))
	if e.TTFT > 0 {
		f["ttft_ms"] = milliseconds(e.TTFT)
	}
	l.log.WithFields(f).Info("request")
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Microseconds()) / 1000
}
