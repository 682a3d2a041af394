package testkit

import (
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
)

// TLSFront takes TLS connections by a configuration and hands what comes on them to a
// server without TLS, and back. It returns its address.
func TLSFront(t testing.TB, config *tls.Config, target string) string {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	var mu sync.Mutex // guards open
	open := map[net.Conn]struct{}{}
	relay := func(c net.Conn) {
		defer func() {
			mu.Lock()
			delete(open, c)
			mu.Unlock()
			_ = c.Close()
		}()
		if err := c.(*tls.Conn).HandshakeContext(t.Context()); err != nil {
			return
		}
		to, err := net.Dial("tcp", target)
		if err != nil {
			return
		}
		work.Go(func() {
			_, _ = io.Copy(to, c)
			_ = to.(*net.TCPConn).CloseWrite()
		})
		_, _ = io.Copy(c, to)
		_ = to.Close()
	}
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = struct{}{}
			mu.Unlock()
			work.Go(func() { relay(c) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return ln.Addr().String()
}
