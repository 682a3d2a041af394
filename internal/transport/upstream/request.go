package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/pdmesh/pdmesh/internal/transport/http1"
)

var errBadRequest = errors.New("the request cannot be sent")

// appendHead appends the head of the request to b. It validates every byte: input of a
// client must not end a line.
func appendHead(b []byte, r *Request) ([]byte, error) {
	if r.Method == "" || strings.ContainsFunc(r.Method, func(c rune) bool { return c > '~' || !http1.IsToken(byte(c)) }) {
		return b, fmt.Errorf("%w: method %q", errBadRequest, r.Method)
	}
	b = append(b, r.Method...)
	b = append(b, ' ')
	b, err := appendTarget(b, r.Path)
	if err != nil {
		return b, err
	}
	b = append(b, " HTTP/1.1\r\nHost: "...)
	if strings.ContainsFunc(r.Instance.Address, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return b, fmt.Errorf("%w: address %q", errBadRequest, r.Instance.Address)
	}
	b = append(b, r.Instance.Address...)
	b = append(b, "\r\n"...)
	if b, err = appendHeader(b, r.Header); err != nil {
		return b, err
	}
	if n := r.size(); n > 0 || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch {
		b = http1.AppendLength(b, n)
	}
	return append(b, "\r\n"...), nil
}

func appendHeader(b []byte, h http.Header) ([]byte, error) {
	var err error
	for name, values := range h {
		if isConnectionHeader(name) {
			continue
		}
		for _, v := range values {
			if b, err = http1.AppendField(b, name, v); err != nil {
				return b, fmt.Errorf("%w: %w", errBadRequest, err)
			}
		}
	}
	return b, nil
}

// size returns the length of the body in bytes.
func (r *Request) size() int64 {
	var n int64
	for _, s := range r.Body {
		n += int64(len(s))
	}
	return n
}

// isConnectionHeader reports whether a header is about the connection or the framing,
// which this client sets itself.
func isConnectionHeader(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Host", "Trailer", "Upgrade", "Connection", "Content-Length", "Transfer-Encoding":
		return true
	}
	return false
}

// appendTarget appends the path, escaped where necessary, and the query unchanged.
func appendTarget(b []byte, target string) ([]byte, error) {
	path, query, _ := strings.Cut(target, "?")
	if path == "" || path[0] != '/' {
		return b, fmt.Errorf("%w: path %q", errBadRequest, path)
	}
	if strings.ContainsFunc(path, needsEscape) {
		path = (&url.URL{Path: path}).EscapedPath()
	}
	b = append(b, path...)
	if query == "" {
		return b, nil
	}
	if strings.ContainsFunc(query, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		return b, fmt.Errorf("%w: a space or control character in the query", errBadRequest)
	}
	b = append(b, '?')
	return append(b, query...), nil
}

// needsEscape reports whether a character may need escaping in a path.
func needsEscape(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') &&
		c != '/' && c != '_' && c != '-' && c != '.' && c != '~'
}
