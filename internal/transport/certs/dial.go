package certs

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"
)

// DialFunc has the signature of net.Dialer.DialContext.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// DialTLS returns a function that dials and completes the handshake within limit. config is called
// for each connection, so that reloaded files apply to the next one. If config is nil or returns
// nil, the system's authorities are used.
func DialTLS(dial DialFunc, config func() *tls.Config, limit time.Duration) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		tc := tls.Client(nc, named(config, address))
		if err := tc.HandshakeContext(ctx); err != nil {
			_ = nc.Close()
			return nil, Explain(err)
		}
		return &clientConn{Conn: tc, read: make(chan struct{})}, nil
	}
}

// named returns a configuration for a server at that address.
func named(config func() *tls.Config, address string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if config != nil {
		c = cmp.Or(config(), c).Clone()
	}
	if c.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			host = address
		}
		c.ServerName = host
	}
	return c
}

// refusalWait bounds the wait of a failed write for the result of the first read. The connection is
// broken, so that a read returns at once.
const refusalWait = time.Second

// clientConn explains errors after the handshake: in TLS 1.3 a server verifies the client's
// certificate only after the client has completed the handshake.
type clientConn struct {
	*tls.Conn

	once    sync.Once     // of the first read
	read    chan struct{} // closed after it
	readErr error         // its error
}

// Read implements net.Conn.
func (c *clientConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		err = Explain(err)
	}
	c.once.Do(func() {
		c.readErr = err
		close(c.read)
	})
	return n, err
}

// Write implements net.Conn. If it fails because the peer has refused the handshake, only a read
// returns the reason, which the peer sends before it closes the connection.
func (c *clientConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err == nil {
		return n, nil
	}
	late := time.NewTimer(refusalWait)
	defer late.Stop()
	select {
	case <-c.read:
		if refused, ok := errors.AsType[*Error](c.readErr); ok {
			return n, refused
		}
	case <-late.C:
	}
	return n, Explain(err)
}

// Speaks reports whether the peer of a new connection answers a TLS handshake. The peer's
// certificate is not verified, and no application data is sent.
func Speaks(ctx context.Context, nc net.Conn) bool {
	err := tls.Client(nc, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}).HandshakeContext(ctx)
	reason, _, ok := Refused(err)
	return err == nil || ok && reason != NoTLS && reason != Protocol
}
