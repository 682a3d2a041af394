package upstream

import "github.com/pdmesh/pdmesh/internal/transport/http1"

const (
	// maxHead bounds the head of a response in bytes.
	maxHead = 64 << 10
	// maxInterim bounds the number of 1xx responses before the final one.
	maxInterim = 8
)

// A response with ambiguous framing is refused, here and in http1: a connection that an
// engine or an intermediary desynchronized must not return one client's response to
// another (RFC 9112, 6.3 and 11).
const (
	errHeadTooLarge = http1.Error("the head is larger than 64 KiB")
	errNoFraming    = http1.Error("a body without a length on a connection that is kept")
	errInterim      = http1.Error("too many interim answers")
	errSwitched     = http1.Error("unrequested protocol switch (status 101)")
)

// head is the parsed head of a response.
type head struct {
	http1.Head
	status int
	http10 bool
}

// persistent reports whether the peer keeps the connection open (RFC 9112, 9.3).
func (h *head) persistent() bool { return !h.Close && (!h.http10 || h.KeepAlive) }

// readHead reads one head, interim or final.
func (c *conn) readHead(h *head) error {
	seen := 0
	for {
		data := c.buf.Bytes()
		n, err := http1.HeadLen(data, seen)
		switch {
		case err != nil:
			return err
		case n > maxHead, n == 0 && len(data) >= maxHead:
			return errHeadTooLarge
		case n > 0:
			err = c.parseHead(h, data[:n])
			c.buf.Take(n)
			return err
		case len(data) >= len("HTTP/1.") && string(data[:len("HTTP/1.")]) != "HTTP/1.":
			return http1.ErrNotHTTP
		}
		seen = len(data)
		if err := c.fill(); err != nil {
			return err
		}
	}
}

func (c *conn) parseHead(h *head, text []byte) error {
	start, fields := http1.SplitHead(text)
	status, http10, err := http1.ParseStatusLine(start)
	if err != nil {
		return err
	}
	parsed, err := c.heads.Parse(fields, http10)
	*h = head{Head: parsed, status: status, http10: http10}
	return err
}
