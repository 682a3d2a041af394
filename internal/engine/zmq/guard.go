package zmq

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
)

// ErrTooLarge means that a peer announced a message above the bounds.
var ErrTooLarge = errors.New("message is too large")

// greetingSize is the length of ZMTP's greeting, which comes before all frames.
const greetingSize = 64

// guard is a connection that checks the frames it reads against the bounds before the
// library sees them, because the library allocates the length in a frame's header. It
// wraps the connection during the handshake.
type guard struct {
	net.Conn
	from      io.Reader
	maxBytes  int
	maxFrames int

	greeting int // bytes of the greeting still to come
	body     int // bytes of the frame's body still to come
	header   [9]byte
	have     int // bytes of header
	bytes    int // of the message so far
	frames   int // of the message so far
}

// Read returns the available bytes, or ErrTooLarge in place of a header that exceeds the
// bounds.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.from.Read(p)
	if bad := g.follow(p[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

func (g *guard) follow(p []byte) error {
	for len(p) > 0 {
		switch {
		case g.greeting > 0:
			n := min(g.greeting, len(p))
			g.greeting, p = g.greeting-n, p[n:]
		case g.body > 0:
			n := min(g.body, len(p))
			g.body, p = g.body-n, p[n:]
		default:
			g.header[g.have], p = p[0], p[1:]
			g.have++
			if err := g.frame(); err != nil {
				return err
			}
		}
	}
	return nil
}

// frame checks a complete header.
func (g *guard) frame() error {
	long := g.header[0]&flagLong != 0
	if long && g.have < 9 || g.have < 2 {
		return nil
	}
	size := uint64(g.header[1])
	if long {
		size = binary.BigEndian.Uint64(g.header[1:])
	}
	g.have = 0
	g.frames++
	if size > uint64(g.maxBytes-g.bytes) || g.frames > g.maxFrames { //nolint:gosec // bytes is never above maxBytes
		return ErrTooLarge
	}
	g.body = int(size) //nolint:gosec // not above maxBytes
	g.bytes += g.body
	if g.header[0]&flagMore == 0 {
		g.bytes, g.frames = 0, 0
	}
	return nil
}
