//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package engine

import "github.com/pdmesh/pdmesh/internal/sock"

// piece is a write that waits, on this system.
type piece struct{}

func (*piece) init() {}

func (*piece) send(tcp *sock.Conn, b []byte) (int, error) { return tcp.Write(b) }
