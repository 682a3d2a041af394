package front

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/http1"
)

// errHandOver marks a request that the standard library's server has to answer.
var errHandOver = errors.New("not a request for this server")

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
	data := c.buf.Bytes()
	var to *route
	for _, r := range c.server.routes {
		if bytes.HasPrefix(data, r.line) {
			to = r
			break
		}
	}
	if to == nil {
		return nil, errHandOver
	}
	n, err := http1.HeadLen(data, 0)
	if n == 0 || err != nil {
		return nil, errHandOver
	}
	_, fields := http1.SplitHead(data[:n])
	head, repeated, err := c.heads.Parse(fields, false)
	if err != nil || !repeated && !c.setHeader(head) {
		c.heads = http1.HeadCache{}
		return nil, errHandOver
	}
	r := c.request.WithContext(c.ctx) // a new request, with the head of the one before, which is often repeated
	c.request = r
	r.URL, r.RequestURI, r.ContentLength = to.url, to.path, head.Length
	c.body.remaining, c.body.deadline = head.Length, time.Time{}
	r.Body = &c.body
	if head.Length == 0 {
		r.Body = http.NoBody
	}
	c.buf.Take(n)
	return to, nil
}

// setHeader sets the header of c.request. It is false for a head that the standard
// library's server has to read: other framing, or a request for more than an answer.
func (c *conn) setHeader(h http1.Head) bool {
	if h.Chunked || h.Length < 0 {
		return false
	}
	for _, name := range [...]string{"Expect", "Upgrade", "Trailer", "Te", "Http2-Settings"} {
		if _, ok := h.Header[name]; ok {
			return false
		}
	}
	for _, value := range h.Header["Connection"] {
		if !http1.EqualFold(value, "keep-alive") && !http1.EqualFold(value, "close") {
			return false
		}
	}
	hosts := h.Header["Host"]
	if len(hosts) != 1 || !isHost(hosts[0]) {
		return false
	}
	delete(h.Header, "Host") // as net/http has it
	c.request.Header, c.request.Host, c.request.Close = h.Header, hosts[0], h.Close
	return true
}

// isHost reports names and addresses, with or without a port.
func isHost(s string) bool {
	for i := range len(s) {
		b := s[i]
		if ('a' > b || b > 'z') && ('A' > b || b > 'Z') && ('0' > b || b > '9') && strings.IndexByte("-._:[]", b) < 0 {
			return false
		}
	}
	return s != ""
}
