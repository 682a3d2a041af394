package upstream

import (
	"bytes"
	"net/http"

	"github.com/pdmesh/pdmesh/internal/httpfield"
)

const (
	// maxHead bounds the head of an answer in bytes.
	maxHead = 64 << 10
	// maxLines bounds the lines of a head, the status line included.
	maxLines = 256
	// maxInterim bounds the 1xx answers before the real one.
	maxInterim = 8
)

// protocolError is an answer that is no HTTP/1.x as we take it. Whatever two
// readers could read in two ways is refused: an engine, or something between,
// that frames answers oddly must not make us give one client another's answer.
type protocolError string

func (e protocolError) Error() string { return string(e) }

const (
	errNotHTTP       = protocolError("not an HTTP/1.0 or HTTP/1.1 answer")
	errStatusLine    = protocolError("malformed status line")
	errBareLF        = protocolError("a line of the head does not end in CR LF")
	errHeadTooLarge  = protocolError("the head is larger than 64 KiB or 256 lines")
	errFold          = protocolError("a folded header line")
	errName          = protocolError("malformed header name")
	errValue         = protocolError("a control character in a header value")
	errLength        = protocolError("malformed or repeated Content-Length")
	errEncoding      = protocolError("a Transfer-Encoding other than chunked")
	errBothFramings  = protocolError("both Transfer-Encoding and Content-Length")
	errNoFraming     = protocolError("a body without a length on a connection that is kept")
	errInterim       = protocolError("too many interim answers")
	errSwitched      = protocolError("the protocol was switched, which nobody asked for")
	errUnasked       = protocolError("bytes that nobody asked for")
	errChunkSize     = protocolError("malformed chunk size")
	errChunkExt      = protocolError("malformed or oversized chunk extension")
	errChunkEnd      = protocolError("a chunk does not end in CR LF")
	errTrailer       = protocolError("malformed chunk trailer")
	errTrailerTooBig = protocolError("the chunk trailer is too large")
)

// head is what the head of an answer says.
type head struct {
	status  int
	old     bool // HTTP/1.0
	header  http.Header
	length  int64 // Content-Length, -1 if there is none
	chunked bool
	close   bool // "Connection: close"
	keep    bool // "Connection: keep-alive"
	// Where in the head the digits of length are.
	lengthFrom, lengthTo int
	memo                 *Memo // nil for a head that is not known
	// Set beforehand.
	bare  bool   // of a 200 no header is made, only checked
	space *Space // for the header, nil for none
}

// persistent tells whether the peer is willing to keep the connection.
func (h *head) persistent() bool { return !h.close && (!h.old || h.keep) }

// parse reads a whole head, from the status line to the empty line. Every line
// of b ends in CR LF. Header names are made canonical in b itself.
func (h *head) parse(b []byte) error {
	*h = head{length: -1, bare: h.bare, space: h.space}
	status := bytes.IndexByte(b, '\n') + 1
	if err := h.parseStatus(b[:status-2]); err != nil {
		return err
	}
	fields := b[status : len(b)-2]
	var room [maxSpaceLines]field
	found := room[:0]
	for at := 0; at < len(fields); {
		end := at + bytes.IndexByte(fields[at:], '\n')
		f, err := h.parseField(fields[at : end-1])
		if err != nil {
			return err
		}
		if h.length >= 0 && h.lengthTo == 0 { // it is this field's
			h.lengthFrom, h.lengthTo = status+at+f.value, status+at+f.end
		}
		found = append(found, field{at, at + f.colon, at + f.value, at + f.end})
		at = end + 1
	}
	if len(found)+1 > maxLines {
		return errHeadTooLarge
	}
	if h.chunked && h.length >= 0 {
		return errBothFramings
	}
	if h.status >= 200 && !(h.bare && h.status == http.StatusOK) {
		h.collect(string(fields), found)
	}
	return nil
}

// field says where a header line has its name, and its value without the blanks
// around it.
type field struct{ name, colon, value, end int }

func (h *head) parseStatus(line []byte) error {
	const version = len("HTTP/1.x")
	if len(line) < version || string(line[:version-1]) != "HTTP/1." || (line[version-1] != '0' && line[version-1] != '1') {
		return errNotHTTP
	}
	h.old = line[version-1] == '0'
	line = line[version:]
	if len(line) < 4 || line[0] != ' ' || line[1] < '1' {
		return errStatusLine
	}
	for _, c := range line[1:4] {
		if c < '0' || c > '9' {
			return errStatusLine
		}
		h.status = 10*h.status + int(c-'0')
	}
	// The space before an empty reason is often left out.
	if reason := line[4:]; len(reason) > 0 {
		if reason[0] != ' ' {
			return errStatusLine
		}
		for _, c := range reason {
			if !httpfield.IsValue(c) {
				return errStatusLine
			}
		}
	}
	return nil
}

// parseField checks one header line and notes what it says about framing.
func (h *head) parseField(line []byte) (field, error) {
	if len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
		return field{}, errFold
	}
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 {
		return field{}, errName
	}
	name := line[:colon]
	if !canonical(name) {
		return field{}, errName
	}
	for _, c := range line[colon+1:] {
		if !httpfield.IsValue(c) {
			return field{}, errValue
		}
	}
	f := field{colon: colon, value: colon + 1, end: len(line)}
	for f.value < f.end && isBlank(line[f.value]) {
		f.value++
	}
	for f.end > f.value && isBlank(line[f.end-1]) {
		f.end--
	}
	return f, h.note(name, line[f.value:f.end])
}

func isBlank(b byte) bool { return b == ' ' || b == '\t' }

// note takes what a field says about framing.
func (h *head) note(name, value []byte) error {
	switch string(name) {
	case "Content-Length":
		return h.setLength(value)
	case "Transfer-Encoding":
		if h.chunked || h.old || !bytes.EqualFold(value, []byte("chunked")) {
			return errEncoding
		}
		h.chunked = true
	case "Connection":
		for option := range bytes.SplitSeq(value, []byte{','}) {
			switch option = trim(option); {
			case bytes.EqualFold(option, []byte("close")):
				h.close = true
			case bytes.EqualFold(option, []byte("keep-alive")):
				h.keep = true
			}
		}
	}
	return nil
}

// setLength takes it once: equal repetitions are refused as well.
func (h *head) setLength(digits []byte) (err error) {
	if h.length >= 0 {
		return errLength
	}
	h.length, err = parseLength(digits)
	return err
}

// parseLength takes digits only.
func parseLength(digits []byte) (int64, error) {
	if len(digits) == 0 || len(digits) > 18 {
		return -1, errLength
	}
	n := int64(0)
	for _, c := range digits {
		if c < '0' || c > '9' {
			return -1, errLength
		}
		n = 10*n + int64(c-'0')
	}
	return n, nil
}

// collect makes the http.Header out of checked lines. All names and values
// share one string, all slices of values one array.
func (h *head) collect(text string, fields []field) {
	var values []string
	h.header, values = h.space.room(len(fields))
	for _, f := range fields {
		name, value := text[f.name:f.colon], text[f.value:f.end]
		if name == "Transfer-Encoding" || name == "Content-Length" {
			continue
		}
		if old, ok := h.header[name]; ok {
			h.header[name] = append(old, value)
			continue
		}
		values = append(values, value)
		h.header[name] = values[len(values)-1 : len(values) : len(values)]
	}
}

// canonical checks a header name and spells it as http.Header does.
func canonical(name []byte) bool {
	upper := true
	for i, c := range name {
		switch {
		case !httpfield.IsToken(c):
			return false
		case upper && 'a' <= c && c <= 'z':
			name[i] = c - ('a' - 'A')
		case !upper && 'A' <= c && c <= 'Z':
			name[i] = c + ('a' - 'A')
		}
		upper = c == '-'
	}
	return true
}

func trim(b []byte) []byte { return bytes.Trim(b, " \t") }
