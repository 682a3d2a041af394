package certs

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// DialFunc is the shape of net.Dialer.DialContext.
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
		var base *tls.Config
		if config != nil {
			base = config()
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		tc := tls.Client(nc, named(base, address))
		if err := tc.HandshakeContext(ctx); err != nil {
			_ = nc.Close()
			return nil, Explain(err)
		}
		return &clientConn{tc}, nil
	}
}

// named returns a configuration for a server at that address.
func named(base *tls.Config, address string) *tls.Config {
	var c *tls.Config
	if base == nil {
		c = &tls.Config{MinVersion: tls.VersionTLS12}
	} else {
		c = base.Clone()
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

// clientConn explains errors after the handshake: in TLS 1.3 a server verifies the client's
// certificate only after the client has completed the handshake.
type clientConn struct{ *tls.Conn }

// Read implements net.Conn.
func (c *clientConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		err = Explain(err)
	}
	return n, err
}

// Write implements net.Conn.
func (c *clientConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		err = Explain(err)
	}
	return n, err
}

// Speaks reports whether the peer of a new connection answers a TLS handshake. The peer's
// certificate is not verified, and no application data is sent.
func Speaks(ctx context.Context, nc net.Conn) bool {
	err := tls.Client(nc, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}).HandshakeContext(ctx)
	reason, _, ok := Refused(err)
	return err == nil || ok && reason != NoTLS && reason != Protocol
}
