//go:build linux || darwin || freebsd || netbsd || openbsd

package engine

import "github.com/pdmesh/pdmesh/internal/sock"

// piece is a write that never waits.
type piece struct {
	step func(fd uintptr) bool // for Raw, made once
	room [1][]byte
	n    int
	err  error
}

func (p *piece) init() {
	p.step = func(fd uintptr) bool {
		p.n, p.err = sock.Send(fd, p.room[:])
		return true
	}
}

// send writes what the socket takes of b.
func (p *piece) send(tcp *sock.Conn, b []byte) (int, error) {
	p.room[0], p.n, p.err = b, 0, nil
	if err := tcp.Raw().Write(p.step); err != nil {
		return 0, err
	}
	return p.n, p.err
}
