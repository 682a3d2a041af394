package front

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/httpfield"
)

// errNotOurs marks a request that the standard library's server answers.
var errNotOurs = errors.New("not a request for this server")

// maxFields bounds the header lines of a request that is served here.
const maxFields = 64

// route is one path that is served here.
type route struct {
	path    string
	line    []byte // the request line, CR LF included
	url     *url.URL
	handler http.HandlerFunc
}

func newRoute(path string, h http.HandlerFunc) *route {
	return &route{path: path, line: []byte("POST " + path + " HTTP/1.1\r\n"), url: &url.URL{Path: path}, handler: h}
}

// parse reads the head of a request out of the buffer into c.request. Nothing is
// taken from the buffer when it fails.
func (c *conn) parse() (*route, error) {
	data := c.buffered()
	var to *route
	for _, r := range c.server.routes {
		if bytes.HasPrefix(data, r.line) {
			to = r
			break
		}
	}
	if to == nil {
		return nil, errNotOurs
	}
	if n := c.parseKnown(data, to); n > 0 {
		c.parsed(n)
		return to, nil
	}
	end := bytes.Index(data, []byte("\r\n\r\n"))
	if end < len(to.line)-2 {
		return nil, errNotOurs
	}
	r := c.request
	c.known = known{}
	clear(r.Header)
	r.URL, r.RequestURI, r.Host, r.Close, r.ContentLength = to.url, to.path, "", false, -1
	if end+2 == len(to.line) { // no field at all: no Host
		return nil, errNotOurs
	}
	// Names and values share one string, all slices of values one array.
	all := string(data[len(to.line) : end+2])
	fields, at := all, 0 // where the length is in all
	lines := strings.Count(fields, "\n")
	if lines > maxFields {
		return nil, errNotOurs
	}
	values := make([]string, 0, lines)
	for len(fields) > 0 {
		nl := strings.IndexByte(fields, '\n')
		if nl < 1 || fields[nl-1] != '\r' {
			return nil, errNotOurs
		}
		line := fields[:nl-1]
		name, value, ok := splitField(line)
		if name == "Content-Length" {
			at = len(all) - len(fields) + strings.LastIndex(line, value)
		}
		fields = fields[nl+1:]
		if !ok || !c.frame(name, value) {
			return nil, errNotOurs
		}
		switch name {
		case "Host", "Content-Length":
			continue
		}
		if old, ok := r.Header[name]; ok {
			r.Header[name] = append(old, value)
			continue
		}
		values = append(values, value)
		r.Header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	if r.Host == "" || r.ContentLength < 0 {
		return nil, errNotOurs
	}
	c.known = known{fields: all, from: at, to: at + countDigits(all[at:])}
	c.parsed(end + 4)
	return to, nil
}

// parsed goes from the head, of n bytes, to the body.
func (c *conn) parsed(n int) {
	r := c.request
	c.body.left, c.body.by = r.ContentLength, time.Time{}
	r.Body = &c.body
	if r.ContentLength == 0 {
		r.Body = http.NoBody
	}
	if c.r += n; c.r == c.w {
		c.recycle()
	}
}

// known is what the connection's last request had in its head: most clients say
// the same again and again, but for the length of the body.
type known struct {
	fields   string // all lines, CR LF included; "" if nothing is known
	from, to int    // the digits of Content-Length in it
	again    bool   // the request before had the same
	memo     any    // what a handler has made of it
}

// parseKnown reads a head that is the last one's but for the length of the body: all
// that was made of that is good for this one too. n is the head's length, 0 if it is
// another head.
func (c *conn) parseKnown(data []byte, to *route) (n int) {
	k := &c.known
	before, behind := k.fields[:k.from], k.fields[k.to:]
	rest := data[len(to.line):]
	if k.fields == "" || len(rest) < len(before) || string(rest[:len(before)]) != before {
		return 0
	}
	rest = rest[len(before):]
	digits := countDigits(rest)
	length, ok := number(rest[:digits])
	rest = rest[digits:]
	if !ok || len(rest) < len(behind)+2 || string(rest[:len(behind)]) != behind || string(rest[len(behind):len(behind)+2]) != "\r\n" {
		return 0
	}
	r := c.request
	r.URL, r.RequestURI, r.ContentLength = to.url, to.path, length
	k.again = true
	return len(data) - len(rest) + len(behind) + 2
}

func countDigits[T string | []byte](s T) (n int) {
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}

// frame notes what a field says about the message and the connection. false
// means that this must be left to others: what frames a message in another way,
// or in two, or asks for more than an answer.
func (c *conn) frame(name, value string) bool {
	r := c.request
	switch name {
	case "Host":
		if r.Host != "" || value == "" {
			return false
		}
		for i := range len(value) {
			if !isHost(value[i]) {
				return false
			}
		}
		r.Host = value
	case "Content-Length":
		n, ok := number(value)
		if !ok || r.ContentLength >= 0 {
			return false
		}
		r.ContentLength = n
	case "Connection":
		switch {
		case strings.EqualFold(value, "keep-alive"):
		case strings.EqualFold(value, "close"):
			r.Close = true
		default:
			return false
		}
	case "Transfer-Encoding", "Expect", "Upgrade", "Trailer", "Te", "Http2-Settings":
		return false
	}
	return true
}

func number[T string | []byte](s T) (n int64, ok bool) {
	if len(s) == 0 || len(s) > 18 {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = 10*n + int64(s[i]-'0')
	}
	return n, true
}

// splitField checks one header line. The name comes in its canonical spelling.
func splitField(line string) (name, value string, ok bool) {
	colon := strings.IndexByte(line, ':')
	if colon <= 0 {
		return "", "", false
	}
	name, value = line[:colon], strings.Trim(line[colon+1:], " \t")
	for i := range len(value) {
		if !httpfield.IsValue(value[i]) {
			return "", "", false
		}
	}
	spelt, upper := true, true
	for i := range len(name) {
		b := name[i]
		switch {
		case !httpfield.IsToken(b):
			return "", "", false
		case upper && 'a' <= b && b <= 'z', !upper && 'A' <= b && b <= 'Z':
			spelt = false
		}
		upper = b == '-'
	}
	if !spelt {
		name = http.CanonicalHeaderKey(name) // common names cost nothing
	}
	return name, value, true
}

// isHost reports the bytes of a name, an address or a port.
func isHost(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || strings.IndexByte("-._:[]", b) >= 0
}
