package http1

import (
	"bytes"
	"net/http"
	"slices"
)

// maxFields bounds the fields of a head.
const maxFields = 255

// HeadLen returns the length of the head at the beginning of data, including the empty
// line at its end, or 0 if the head is incomplete. seen is the length of data at an
// earlier call; that part is not searched again.
func HeadLen(data []byte, seen int) (int, error) {
	for {
		nl := bytes.IndexByte(data[seen:], '\n')
		if nl < 0 {
			return 0, nil
		}
		nl += seen
		switch {
		case nl == 0 || data[nl-1] != '\r':
			return 0, ErrBareLF
		case nl == 1 || data[nl-2] == '\n':
			return nl + 1, nil
		}
		seen = nl + 1
	}
}

// SplitHead splits a complete head, of the length from HeadLen, into its start line
// without CR LF and its fields, each with CR LF.
func SplitHead(head []byte) (start, fields []byte) {
	nl := bytes.IndexByte(head, '\n')
	if nl+1 == len(head) { // only an empty line
		return nil, nil
	}
	return head[:nl-1], head[nl+1 : len(head)-2]
}

// ParseStatusLine parses the start line of a response. http10 reports whether its version is
// HTTP/1.0 rather than 1.1.
func ParseStatusLine(line []byte) (status int, http10 bool, err error) {
	const version = len("HTTP/1.x")
	switch {
	case len(line) == 0:
		return 0, false, ErrStatusLine
	case len(line) < version || string(line[:version-1]) != "HTTP/1." || line[version-1] != '0' && line[version-1] != '1':
		return 0, false, ErrNotHTTP
	}
	http10 = line[version-1] == '0'
	line = line[version:]
	if len(line) < 4 || line[0] != ' ' {
		return 0, http10, ErrStatusLine
	}
	n, ok := parseLength(line[1:4])
	// Servers often leave out the space before an empty reason.
	if reason := line[4:]; !ok || n < 100 || len(reason) > 0 && reason[0] != ' ' {
		return 0, http10, ErrStatusLine
	}
	for _, c := range line[4:] {
		if !isValue(c) {
			return 0, http10, ErrStatusLine
		}
	}
	return int(n), http10, nil
}

// Head is the parsed form of a message's fields.
type Head struct {
	Length    int64 // Content-Length, -1 if there is none
	Chunked   bool
	Close     bool // "Connection: close"
	KeepAlive bool // "Connection: keep-alive"
	// Header has canonical names, without Transfer-Encoding and Content-Length. Heads
	// may share one Header, so it must not be changed.
	Header http.Header
}

// addLength refuses a second Content-Length, even an equal one.
func (h *Head) addLength(value []byte) error {
	n, ok := parseLength(value)
	switch {
	case h.Chunked:
		return ErrBothFramings
	case !ok || h.Length >= 0:
		return ErrLength
	}
	h.Length = n
	return nil
}

// addEncoding accepts chunked only, and not in an HTTP/1.0 message.
func (h *Head) addEncoding(value []byte, http10 bool) error {
	switch {
	case h.Length >= 0:
		return ErrBothFramings
	case h.Chunked || http10 || !equalFold(value, "chunked"):
		return ErrEncoding
	}
	h.Chunked = true
	return nil
}

func (h *Head) addConnection(value []byte) {
	for len(value) > 0 {
		var option []byte
		option, value, _ = bytes.Cut(value, []byte(","))
		option = trim(option)
		h.Close = h.Close || equalFold(option, "close")
		h.KeepAlive = h.KeepAlive || equalFold(option, "keep-alive")
	}
}

// span is a part of a text as two offsets. A head is far shorter than 2 GiB.
type span struct{ from, to int32 }

func newSpan(from, to int) span { return span{int32(from), int32(to)} } //nolint:gosec // both are within a head

// parseFields parses the fields of a head and does not modify them. http10 is true for an
// HTTP/1.0 message. digits is the position of the digits of Content-Length in fields.
func parseFields(fields []byte, http10 bool) (h Head, digits span, err error) {
	h.Length = -1
	// On the stack, and large enough for most heads. The stack of a goroutine that serves a
	// connection is 8 KiB; if these were larger it would be doubled for as long as the connection lasts.
	var textBuf [640]byte
	var spanBuf [2 * 16]span
	text, spans := append(textBuf[:0], fields...), spanBuf[:0] // a name and its value, in turn
	lines := 0
	for rest := text; len(rest) > 0; lines++ {
		at := len(text) - len(rest)
		var name, value []byte
		if name, value, rest, err = nextField(rest); err != nil {
			return Head{}, span{}, err
		}
		canonicalize(name)
		from := at + len(name) + 1
		for from < len(text) && isBlank(text[from]) {
			from++
		}
		v := newSpan(from, from+len(value))
		switch string(name) {
		case "Content-Length":
			digits, err = v, h.addLength(value)
		case "Transfer-Encoding":
			err = h.addEncoding(value, http10)
		case "Connection":
			h.addConnection(value)
			fallthrough
		default:
			spans = append(spans, newSpan(at, at+len(name)), v)
		}
		if err != nil {
			return Head{}, span{}, err
		}
	}
	if lines > maxFields {
		return Head{}, span{}, ErrManyFields
	}
	h.Header = makeHeader(string(text), spans)
	return h, digits, nil
}

// makeHeader builds a Header. All names and values share one string, and all slices of
// values share one array.
func makeHeader(text string, spans []span) http.Header {
	h := make(http.Header, len(spans)/2)
	values := make([]string, 0, len(spans)/2)
	for i := 0; i < len(spans); i += 2 {
		name, value := text[spans[i].from:spans[i].to], text[spans[i+1].from:spans[i+1].to]
		if earlier, ok := h[name]; ok {
			h[name] = slices.Clip(append(earlier, value)) // without capacity, so that an append to a copy does not write here
			continue
		}
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	return h
}

// canonicalize rewrites a name to the canonical form of http.Header.
func canonicalize(name []byte) {
	upper := true
	for i, c := range name {
		switch {
		case upper && 'a' <= c && c <= 'z':
			name[i] = c - ('a' - 'A')
		case !upper && 'A' <= c && c <= 'Z':
			name[i] = c + ('a' - 'A')
		}
		upper = c == '-'
	}
}
