package accesslog

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/logging"
)

// maxModel bounds what a client may have written as a model's name.
const maxModel = 200

// timeFormat is that of the program's text log.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// line is one line under construction: the bytes, and how a field begins.
type line struct {
	b    []byte
	json bool
}

func appendText(b []byte, e *forward.Entry) []byte {
	l := line{b: append(b, `time="`...)}
	l.b = e.Start.Add(e.Duration).AppendFormat(l.b, timeFormat)
	l.b = append(l.b, `" level=info msg=request`...)
	l.fields(e)
	return append(l.b, '\n')
}

func appendJSON(b []byte, e *forward.Entry) []byte {
	l := line{b: append(b, `{"time":"`...), json: true}
	l.b = e.Start.Add(e.Duration).AppendFormat(l.b, time.RFC3339Nano)
	l.b = append(l.b, `","level":"info","msg":"request"`...)
	l.fields(e)
	return append(l.b, '}', '\n')
}

func (l *line) fields(e *forward.Entry) {
	l.str(logging.FieldRequestID, e.RequestID)
	l.str("client", e.Client)
	l.str("method", e.Method)
	l.str("path", e.Path)
	l.str(logging.FieldModel, instance.Printable(e.Model, maxModel))
	l.key("stream")
	l.b = strconv.AppendBool(l.b, e.Stream)
	l.num(logging.FieldStatus, int64(e.Status))
	l.str("outcome", e.Outcome)
	l.some("prefill", e.Prefill)
	l.some("decode", e.Decode)
	l.some("alone", e.Alone)
	l.some("failure", string(e.Failure))
	l.num("failed_legs", int64(e.Attempts))
	l.num(logging.FieldRevision, e.Revision)
	l.num("bytes_in", e.BytesIn)
	l.num("bytes_out", e.BytesOut)
	l.ms("ms", e.Duration)
	if e.TTFT > 0 {
		l.ms("ttft_ms", e.TTFT)
	}
}

func (l *line) key(name string) {
	if l.json {
		l.b = append(l.b, `,"`...)
		l.b = append(l.b, name...)
		l.b = append(l.b, `":`...)
		return
	}
	l.b = append(l.b, ' ')
	l.b = append(l.b, name...)
	l.b = append(l.b, '=')
}

func (l *line) num(name string, v int64) {
	l.key(name)
	l.b = strconv.AppendInt(l.b, v, 10)
}

// ms writes milliseconds with three decimals.
func (l *line) ms(name string, d time.Duration) {
	l.key(name)
	us := max(d.Microseconds(), 0)
	l.b = strconv.AppendInt(l.b, us/1000, 10)
	rest := us % 1000
	l.b = append(l.b, '.', byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10))
}

func (l *line) some(name, v string) {
	if v != "" {
		l.str(name, v)
	}
}

func (l *line) str(name, v string) {
	l.key(name)
	switch {
	case l.json:
		l.b = appendJSONString(l.b, v)
	case bare(v):
		l.b = append(l.b, v...)
	default:
		l.b = strconv.AppendQuote(l.b, v)
	}
}

// bare tells that a value needs no quotes in key=value.
func bare(v string) bool {
	for i := range len(v) {
		switch c := v[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-', c == '.', c == '_', c == '/', c == '@', c == '^', c == '+', c == ':', c == '[', c == ']':
		default:
			return false
		}
	}
	return len(v) > 0
}

func appendJSONString(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r) // what is no UTF-8 becomes U+FFFD
			i += n
			continue
		}
		i++
	}
	return append(b, '"')
}
