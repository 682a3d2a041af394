package front

import (
	"net"
	"testing"
)

// A connection that cannot be watched is an error: nothing would tell that its client
// has left.
func TestUnwatchable(t *testing.T) {
	t.Parallel()
	w, err := newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.close() }()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	c, err := newConn(&Server{}, nc.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.add(c); err != nil {
		t.Fatal(err)
	}
	first := c.token
	if err := w.add(c); err == nil { // the kernel refuses the second time
		t.Fatal("EEXIST was not told of")
	}
	if len(w.conns) != 1 || w.conns[first] != c {
		t.Errorf("watched: %v", w.conns)
	}
}
