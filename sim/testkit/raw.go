package testkit

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
)

// RawServer listens on a port of this machine, passes each connection to talk, with its
// number from 0, and its own address to the caller. It writes nothing by itself, so that a test can answer with
// any bytes, cut where it likes. A connection is closed when its talk returns; the end
// of the test closes all of them and waits for talk, which must then return.
func RawServer(t testing.TB, talk func(n int, c net.Conn)) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("raw server: %v", err)
	}
	var mu sync.Mutex
	conns := make(map[net.Conn]bool) // nil when the test has ended
	var wg sync.WaitGroup
	add := func(c net.Conn) bool {
		mu.Lock()
		defer mu.Unlock()
		if conns == nil {
			return false
		}
		conns[c] = true
		return true
	}
	end := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		delete(conns, c)
		_ = c.Close()
	}
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if !add(c) {
				_ = c.Close()
				return
			}
			wg.Go(func() {
				defer end(c)
				talk(n, c)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for c := range conns {
			_ = c.Close()
		}
		conns = nil
		mu.Unlock()
		wg.Wait()
	})
	return ln.Addr().String()
}

// RawAnswers is a talk for RawServer that reads one request after the other, with its
// body, and has answer write to the connection. n counts the connection's requests from
// 1. The connection ends when the client ends it, or answer returns false.
func RawAnswers(answer func(c net.Conn, r *http.Request, n int) bool) (talk func(n int, c net.Conn)) {
	return func(_ int, c net.Conn) {
		in := bufio.NewReader(c)
		for n := 1; ; n++ {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil || !answer(c, r, n) {
				return
			}
		}
	}
}
