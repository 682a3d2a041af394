package upstream

import (
	"bytes"
	"net/http"
	"strings"
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
	bare    bool // set beforehand: of a 200 no header is made, only checked
}

// persistent tells whether the peer is willing to keep the connection.
func (h *head) persistent() bool { return !h.close && (!h.old || h.keep) }

// parse reads a whole head, from the status line to the empty line. Every line
// of b ends in CR LF. Header names are made canonical in b itself.
func (h *head) parse(b []byte) error {
	*h = head{length: -1, bare: h.bare}
	status := bytes.IndexByte(b, '\n') + 1
	if err := h.parseStatus(b[:status-2]); err != nil {
		return err
	}
	fields := b[status : len(b)-2]
	lines := 0
	for rest := fields; len(rest) > 0; lines++ {
		end := bytes.IndexByte(rest, '\n')
		if err := h.parseField(rest[:end-1]); err != nil {
			return err
		}
		rest = rest[end+1:]
	}
	if lines+1 > maxLines {
		return errHeadTooLarge
	}
	if h.chunked && h.length >= 0 {
		return errBothFramings
	}
	if h.status >= 200 && !(h.bare && h.status == http.StatusOK) {
		h.collect(string(fields), lines)
	}
	return nil
}

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
			if !isFieldByte(c) {
				return errStatusLine
			}
		}
	}
	return nil
}

// parseField checks one header line and notes what it says about framing.
func (h *head) parseField(line []byte) error {
	if len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
		return errFold
	}
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 {
		return errName
	}
	name, value := line[:colon], line[colon+1:]
	if !canonical(name) {
		return errName
	}
	for _, c := range value {
		if !isFieldByte(c) {
			return errValue
		}
	}
	switch string(name) {
	case "Content-Length":
		return h.setLength(trim(value))
	case "Transfer-Encoding":
		if h.chunked || h.old || !bytes.EqualFold(trim(value), []byte("chunked")) {
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

// setLength takes digits only, once: equal repetitions are refused as well.
func (h *head) setLength(digits []byte) error {
	if h.length >= 0 || len(digits) == 0 || len(digits) > 18 {
		return errLength
	}
	n := int64(0)
	for _, c := range digits {
		if c < '0' || c > '9' {
			return errLength
		}
		n = 10*n + int64(c-'0')
	}
	h.length = n
	return nil
}

// collect makes the http.Header out of checked lines. All names and values
// share one string, all slices of values one array.
func (h *head) collect(fields string, lines int) {
	h.header = make(http.Header, lines)
	values := make([]string, 0, lines)
	for len(fields) > 0 {
		end := strings.IndexByte(fields, '\r')
		line := fields[:end]
		fields = fields[end+2:]
		colon := strings.IndexByte(line, ':')
		name, value := line[:colon], strings.Trim(line[colon+1:], " \t")
		if name == "Transfer-Encoding" {
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
		case !isToken(c):
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
