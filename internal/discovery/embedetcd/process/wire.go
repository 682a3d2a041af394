package process

import (
	"encoding/json"
	"errors"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd"
)

// message is one line of the child's output. Exactly one of the fields is set.
type message struct {
	Log    *logLine `json:"log,omitempty"`
	Ready  string   `json:"ready,omitempty"` // the endpoint
	Failed *failed  `json:"failed,omitempty"`
}

type logLine struct {
	Level  string         `json:"level"`
	Text   string         `json:"text"`
	Fields map[string]any `json:"fields,omitempty"`
}

// failed is the last message of a child that exits, and the error of its parent.
type failed struct {
	Kind string `json:"kind,omitempty"` // of kinds; "" for any other error
	Text string `json:"text"`
}

// kinds are the errors of embedetcd that callers distinguish, by their names on
// the wire.
func kinds() map[string]error {
	return map[string]error{
		"join": embedetcd.ErrJoin, "taken": embedetcd.ErrPortTaken, "locked": embedetcd.ErrLocked,
		"listen": embedetcd.ErrListen, "certificate": embedetcd.ErrCertificate,
	}
}

func failure(err error) *failed {
	for name, kind := range kinds() {
		if errors.Is(err, kind) {
			return &failed{Kind: name, Text: err.Error()}
		}
	}
	return &failed{Text: err.Error()}
}

func (f *failed) Error() string { return f.Text }
func (f *failed) Unwrap() error { return kinds()[f.Kind] }

// lineFormatter formats the child's log lines as messages.
type lineFormatter struct{}

// Format implements logrus.Formatter.
func (lineFormatter) Format(e *logrus.Entry) ([]byte, error) {
	fields := make(map[string]any, len(e.Data))
	for k, v := range e.Data {
		if err, ok := v.(error); ok {
			v = err.Error() // encoding/json writes an error as {}
		}
		fields[k] = v
	}
	line, err := json.Marshal(message{Log: &logLine{Level: e.Level.String(), Text: e.Message, Fields: fields}})
	if err != nil { // a field that JSON cannot hold
		line, err = json.Marshal(message{Log: &logLine{Level: e.Level.String(), Text: e.Message}})
	}
	return append(line, '\n'), err
}

// maxLine bounds a line; a longer one is not a message of the child.
const maxLine = 1 << 20

// prefixBuffer keeps the first bytes that are written to it: the trace of a panic
// begins with the reason.
type prefixBuffer struct{ b []byte }

const maxPrefix = 64 << 10

// Write implements io.Writer.
func (k *prefixBuffer) Write(p []byte) (int, error) {
	if room := maxPrefix - len(k.b); room > 0 {
		k.b = append(k.b, p[:min(room, len(p))]...)
	}
	return len(p), nil
}
