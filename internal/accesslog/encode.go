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

// What stands around the time of a line, as far as it is the same in all of them.
const (
	textHead = `time="`
	textTail = `" level=info msg=request ` + logging.FieldRequestID + "="
	jsonHead = `{"time":"`
	jsonTail = `","level":"info","msg":"request","` + logging.FieldRequestID + `":`
)

// appendText adds a line of key=value. Its time is in the form of the program's
// text log, 2006-01-02T15:04:05.000Z07:00.
//
// The fields are listed here and once more in appendJSON: a key that is known
// when this is compiled costs a few instructions, one that is chosen costs a call.
func appendText(b []byte, c *clock, e *forward.Entry) []byte {
	t := e.Start.Add(e.Duration)
	c.turn(t)
	b = appendDigits(append(append(b, c.head...), '.'), uint32(t.Nanosecond()/1e6))
	b = append(b, c.tail...)
	b = appendValue(b, e.RequestID)
	b = appendValue(append(b, " client="...), e.Client)
	if e.KeyName != "" {
		b = appendValue(append(b, " key_name="...), e.KeyName)
	}
	b = appendValue(append(b, " method="...), e.Method)
	b = appendValue(append(b, " path="...), e.Path)
	b = appendValue(append(b, " "+logging.FieldModel+"="...), model(e))
	if e.Stream {
		b = append(b, " stream=true "+logging.FieldStatus+"="...)
	} else {
		b = append(b, " stream=false "+logging.FieldStatus+"="...)
	}
	b = strconv.AppendInt(b, int64(e.Status), 10)
	b = appendValue(append(b, " outcome="...), e.Outcome)
	if e.Prefill != "" {
		b = appendValue(append(b, " prefill="...), e.Prefill)
	}
	if e.Decode != "" {
		b = appendValue(append(b, " decode="...), e.Decode)
	}
	if e.Alone != "" {
		b = appendValue(append(b, " alone="...), e.Alone)
	}
	if e.Elsewhere != "" {
		b = appendValue(append(b, " elsewhere="...), e.Elsewhere)
	}
	if e.Failure != "" {
		b = appendValue(append(b, " failure="...), string(e.Failure))
	}
	b = strconv.AppendInt(append(b, " failed_legs="...), int64(e.Attempts), 10)
	b = strconv.AppendInt(append(b, " "+logging.FieldRevision+"="...), e.Revision, 10)
	b = strconv.AppendInt(append(b, " bytes_in="...), e.BytesIn, 10)
	b = strconv.AppendInt(append(b, " bytes_out="...), e.BytesOut, 10)
	b = appendMillis(append(b, " ms="...), e.Duration)
	if e.TTFT > 0 {
		b = appendMillis(append(b, " ttft_ms="...), e.TTFT)
	}
	return append(b, '\n')
}

// model gives the model's name, cut and without what is not to be shown.
func model(e *forward.Entry) string {
	if len(e.Model) <= maxModel && plain(e.Model) {
		return e.Model
	}
	return instance.Printable(e.Model, maxModel)
}

// appendMillis adds milliseconds with three decimals.
func appendMillis(b []byte, d time.Duration) []byte {
	us := uint64(max(d.Microseconds(), 0))
	b = append(strconv.AppendUint(b, us/1000, 10), '.')
	return appendDigits(b, uint32(us%1000))
}

// appendDigits adds the three digits of a number below 1000.
func appendDigits(b []byte, n uint32) []byte {
	return append(b, byte('0'+n/100), byte('0'+n/10%10), byte('0'+n%10))
}

// appendValue adds a value of key=value, in quotes if it needs any.
func appendValue(b []byte, v string) []byte {
	switch {
	case bare(v):
		return append(b, v...)
	case plain(v):
		return appendPlain(b, v)
	default:
		return strconv.AppendQuote(b, v)
	}
}

// appendPlain puts quotes around what needs nothing else.
func appendPlain(b []byte, v string) []byte {
	return append(append(append(b, '"'), v...), '"')
}

// appendJSON adds an object. Its time is in the form of the program's JSON log,
// time.RFC3339Nano.
func appendJSON(b []byte, c *clock, e *forward.Entry) []byte {
	t := e.Start.Add(e.Duration)
	c.turn(t)
	b = appendFraction(append(b, c.head...), uint32(t.Nanosecond()))
	b = append(b, c.tail...)
	b = appendString(b, e.RequestID)
	b = appendString(append(b, `,"client":`...), e.Client)
	if e.KeyName != "" {
		b = appendString(append(b, `,"key_name":`...), e.KeyName)
	}
	b = appendString(append(b, `,"method":`...), e.Method)
	b = appendString(append(b, `,"path":`...), e.Path)
	b = appendString(append(b, `,"`+logging.FieldModel+`":`...), model(e))
	if e.Stream {
		b = append(b, `,"stream":true,"`+logging.FieldStatus+`":`...)
	} else {
		b = append(b, `,"stream":false,"`+logging.FieldStatus+`":`...)
	}
	b = strconv.AppendInt(b, int64(e.Status), 10)
	b = appendString(append(b, `,"outcome":`...), e.Outcome)
	if e.Prefill != "" {
		b = appendString(append(b, `,"prefill":`...), e.Prefill)
	}
	if e.Decode != "" {
		b = appendString(append(b, `,"decode":`...), e.Decode)
	}
	if e.Alone != "" {
		b = appendString(append(b, `,"alone":`...), e.Alone)
	}
	if e.Elsewhere != "" {
		b = appendString(append(b, `,"elsewhere":`...), e.Elsewhere)
	}
	if e.Failure != "" {
		b = appendString(append(b, `,"failure":`...), string(e.Failure))
	}
	b = strconv.AppendInt(append(b, `,"failed_legs":`...), int64(e.Attempts), 10)
	b = strconv.AppendInt(append(b, `,"`+logging.FieldRevision+`":`...), e.Revision, 10)
	b = strconv.AppendInt(append(b, `,"bytes_in":`...), e.BytesIn, 10)
	b = strconv.AppendInt(append(b, `,"bytes_out":`...), e.BytesOut, 10)
	b = appendMillis(append(b, `,"ms":`...), e.Duration)
	if e.TTFT > 0 {
		b = appendMillis(append(b, `,"ttft_ms":`...), e.TTFT)
	}
	return append(b, '}', '\n')
}

// appendFraction adds a fraction of a second with its point, as short as it can
// be written.
func appendFraction(b []byte, ns uint32) []byte {
	if ns == 0 {
		return b
	}
	b = appendDigits(append(b, '.'), ns/1e6)
	b = appendDigits(b, ns/1e3%1e3)
	b = appendDigits(b, ns%1e3)
	for b[len(b)-1] == '0' {
		b = b[:len(b)-1]
	}
	return b
}

func appendString(b []byte, s string) []byte {
	if plain(s) {
		return appendPlain(b, s)
	}
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
