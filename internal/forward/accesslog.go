package forward

import (
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
)

// maxShown is the maximum length in bytes of a text from a client or an engine in a log line.
const maxShown = 200

// AccessLog writes one line for each request, in the format of the program's log.
// NewAccessLog creates it. It is safe for concurrent use.
//
// It encodes the lines itself: logrus takes 20 times as long for a line and log/slog 5
// times. That would be a tenth of the time of a small request or more.
type AccessLog struct {
	out   io.Writer
	json  bool
	lines sync.Pool // of *line
}

// NewAccessLog returns an AccessLog. format is logging.FormatText or FormatJSON. Each write
// to out is one whole line; out must not block.
func NewAccessLog(out io.Writer, format string) *AccessLog {
	return &AccessLog{out: out, json: strings.EqualFold(format, logging.FormatJSON), lines: sync.Pool{New: func() any { return new(line) }}}
}

// Write writes the line of a request, with the end of the request as its time. The line
// never contains prompts or keys; fields without a value are omitted.
func (a *AccessLog) Write(e *Entry) {
	l, _ := a.lines.Get().(*line)
	defer a.lines.Put(l)
	l.json, l.b = a.json, l.b[:0]
	at := e.Start.Add(e.Duration)
	if l.json {
		l.b = append(at.AppendFormat(append(l.b, `{"time":"`...), time.RFC3339Nano), `","level":"info","msg":"request"`...)
	} else {
		l.b = append(at.AppendFormat(append(l.b, `time="`...), logging.TextTime), `" level=info msg=request`...)
	}
	l.text(logging.FieldRequestID, e.RequestID)
	l.text("client", e.Client)
	l.some("key_name", e.KeyName)
	l.text("method", e.Method)
	l.text("path", e.Path)
	l.some(logging.FieldModel, shown(e.Model))
	l.some("target", e.Target)
	l.some("passed_over", strings.Join(e.PassedOver, ","))
	l.b = strconv.AppendBool(l.name("stream"), e.Stream)
	l.number(logging.FieldStatus, int64(e.Status))
	l.positive("late_status", e.Late)
	l.text("outcome", e.Outcome)
	l.some("finish_reason", shown(e.Finish))
	l.some("prefill", e.Prefill)
	l.some("decode", e.Decode)
	l.some("decode_only", e.DecodeOnly)
	l.some("elsewhere", e.Elsewhere())
	l.some("refused", e.Refused)
	l.some("failure", string(e.Failure))
	l.number("failed_legs", int64(e.Failed))
	l.positive("continued", e.Continued)
	l.positive(logging.FieldRevision, int(e.Revision))
	l.number("bytes_in", e.BytesIn)
	l.number("bytes_out", e.Bytes)
	l.positive("input_tokens", e.Input)
	l.positive("cached_tokens", e.Cached)
	l.positive("output_tokens", e.Output)
	l.millis("ms", e.Duration)
	if e.TTFT > 0 {
		l.millis("ttft_ms", e.TTFT)
	}
	l.some("trace_id", e.TraceID)
	if l.json {
		l.b = append(l.b, '}')
	}
	l.b = append(l.b, '\n')
	_, _ = a.out.Write(l.b) // out has no errors: a queue drops and counts
}

// line is the buffer of one log line.
type line struct {
	b    []byte
	json bool
}

// name appends the name of a field and the separator before its value.
func (l *line) name(name string) []byte {
	if l.json {
		return append(append(append(l.b, `,"`...), name...), `":`...)
	}
	return append(append(append(l.b, ' '), name...), '=')
}

// text appends a field. In the text format, only a value that requires quotes is quoted.
func (l *line) text(name, value string) {
	b := l.name(name)
	switch bare, plain := classify(value); {
	case bare && !l.json:
		b = append(b, value...)
	case plain:
		b = append(append(append(b, '"'), value...), '"')
	case l.json:
		quoted, _ := json.Marshal(value) // a string has no error
		b = append(b, quoted...)
	default:
		b = strconv.AppendQuote(b, value)
	}
	l.b = b
}

// some appends a field unless its value is empty.
func (l *line) some(name, value string) {
	if value != "" {
		l.text(name, value)
	}
}

func (l *line) number(name string, n int64) { l.b = strconv.AppendInt(l.name(name), n, 10) }

func (l *line) positive(name string, n int) {
	if n > 0 {
		l.number(name, int64(n))
	}
}

// millis appends a duration in milliseconds, with three decimals.
func (l *line) millis(name string, d time.Duration) {
	us := max(d, 0).Microseconds()
	l.b = append(strconv.AppendInt(l.name(name), us/1000, 10), '.')
	l.b = append(l.b, byte('0'+us%1000/100), byte('0'+us%100/10), byte('0'+us%10))
}

// classify reports whether a value needs no quotes in the text format, and whether it needs
// no escapes between quotes.
func classify(s string) (bare, plain bool) {
	bare, plain = s != "", true
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c == '"' || c == '\\' || c >= 0x7f:
			return false, false
		case c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("-._/@^+:[]", c) >= 0:
		default:
			bare = false
		}
	}
	return bare, plain
}

// shown returns a text from a client or an engine, truncated and with control characters escaped.
func shown(s string) string {
	if _, plain := classify(s); plain && len(s) <= maxShown {
		return s
	}
	return instance.Printable(s, maxShown)
}
