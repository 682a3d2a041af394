//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package wire

import "github.com/pdmesh/pdmesh/internal/sock"

type operation struct{}

func (*operation) init(*Conn) {}

func (*operation) writeEach(tcp *sock.Conn, next func() []byte) error {
	for p := next(); len(p) > 0; p = next() {
		if _, err := tcp.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// Read implements io.Reader. It sends what is queued first, and returns the error of that.
func (c *Conn) Read(p []byte) (int, error) {
	if err := c.Flush(); err != nil {
		return 0, err
	}
	return c.tcp.Read(p)
}
