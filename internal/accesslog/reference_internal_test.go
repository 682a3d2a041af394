package accesslog

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// field of a line: a value, and whether it is a string.
type field struct {
	name, value string
	text        bool
}

// referenceFields are the fields of a line, without those that are empty.
func referenceFields(e *forward.Entry) []field {
	var fields []field
	text := func(name, v string) { fields = append(fields, field{name, v, true}) }
	some := func(name, v string) {
		if v != "" {
			text(name, v)
		}
	}
	other := func(name string, v any) { fields = append(fields, field{name, fmt.Sprint(v), false}) }
	millis := func(name string, d time.Duration) {
		us := max(d.Microseconds(), 0)
		other(name, fmt.Sprintf("%d.%03d", us/1000, us%1000))
	}
	text("request_id", e.RequestID)
	text("client", e.Client)
	some("key_name", e.KeyName)
	text("method", e.Method)
	text("path", e.Path)
	text("model", instance.Printable(e.Model, 200))
	other("stream", e.Stream)
	other("status", e.Status)
	text("outcome", e.Outcome)
	some("prefill", e.Prefill)
	some("decode", e.Decode)
	some("alone", e.Alone)
	some("elsewhere", e.Elsewhere)
	some("failure", string(e.Failure))
	other("failed_legs", e.Attempts)
	other("revision", e.Revision)
	other("bytes_in", e.BytesIn)
	other("bytes_out", e.BytesOut)
	millis("ms", e.Duration)
	if e.TTFT > 0 {
		millis("ttft_ms", e.TTFT)
	}
	return fields
}

// isBare is what may stand in key=value without quotes.
func isBare(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	case c == '-', c == '.', c == '_', c == '/', c == '@', c == '^', c == '+', c == ':', c == '[', c == ']':
		return true
	}
	return false
}

// referenceText says what a line of key=value is, in the straightforward way.
func referenceText(e *forward.Entry) string {
	var b strings.Builder
	fmt.Fprintf(&b, `time="%s" level=info msg=request`, e.Start.Add(e.Duration).Format("2006-01-02T15:04:05.000Z07:00"))
	for _, f := range referenceFields(e) {
		quote := f.text && f.value == ""
		for _, c := range []byte(f.value) {
			quote = quote || f.text && !isBare(c)
		}
		if quote {
			f.value = strconv.Quote(f.value)
		}
		fmt.Fprintf(&b, " %s=%s", f.name, f.value)
	}
	return b.String() + "\n"
}

// referenceJSON says what an object is, in the straightforward way.
func referenceJSON(e *forward.Entry) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"time":"%s","level":"info","msg":"request"`, e.Start.Add(e.Duration).Format(time.RFC3339Nano))
	for _, f := range referenceFields(e) {
		fmt.Fprintf(&b, `,"%s":`, f.name)
		if !f.text {
			b.WriteString(f.value)
			continue
		}
		b.WriteByte('"')
		for _, r := range f.value { // what is no UTF-8 becomes U+FFFD
			switch {
			case r == '"' || r == '\\':
				fmt.Fprintf(&b, `\%c`, r)
			case r < ' ' || r == 0x7f:
				fmt.Fprintf(&b, `\u%04x`, r)
			default:
				b.WriteRune(r)
			}
		}
		b.WriteByte('"')
	}
	return b.String() + "}\n"
}
