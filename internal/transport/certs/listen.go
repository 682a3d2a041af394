package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// handshakeTimeout is the timeout of a client's handshake.
	handshakeTimeout = 10 * time.Second
	// logInterval is the minimum time between two log lines about the same reason.
	logInterval = 10 * time.Second
)

// Listener serves TLS on the connections of another listener. The handshake runs at the first
// read or write of a connection, so that a slow client does not block Accept.
type Listener struct {
	net.Listener
	config *tls.Config
	log    logrus.FieldLogger

	mu         sync.Mutex // guards the fields below
	refused    map[Reason]int64
	lastLogged map[Reason]time.Time
}

// Listen returns a Listener.
func (s *Source) Listen(ln net.Listener, log logrus.FieldLogger) *Listener {
	return &Listener{Listener: ln, config: s.Server(), log: log, refused: map[Reason]int64{}, lastLogged: map[Reason]time.Time{}}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &serverConn{Conn: tls.Server(nc, l.config), listener: l}, nil
}

// RefusedCounts returns the number of failed handshakes by reason.
func (l *Listener) RefusedCounts() map[Reason]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.refused)
}

// failed counts a failed handshake, and logs it unless its reason was logged within logInterval.
func (l *Listener) failed(client net.Addr, err error) {
	reason, text, ok := Refused(err)
	switch {
	case reason == NoTLS:
		text = "it does not speak TLS"
	case !ok:
		reason, text = Closed, "the client disconnected, or sent nothing in time"
	}
	l.mu.Lock()
	l.refused[reason]++
	all := l.refused[reason]
	due := time.Since(l.lastLogged[reason]) >= logInterval
	if due {
		l.lastLogged[reason] = time.Now()
	}
	l.mu.Unlock()
	if !due || l.log == nil {
		return
	}
	log := l.log.WithFields(logrus.Fields{"client": client.String(), "reason": string(reason), "refused": all})
	if reason == Closed {
		log.Debug("TLS with a client failed: " + text)
		return
	}
	log.Warn("TLS with a client failed: " + text)
}

// serverConn is a client's connection.
type serverConn struct {
	*tls.Conn
	listener *Listener
	once     sync.Once
	err      error
}

// Read implements net.Conn.
func (c *serverConn) Read(p []byte) (int, error) {
	c.once.Do(c.handshake)
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(p)
}

// Write implements net.Conn. An HTTP/2 server writes before it reads.
func (c *serverConn) Write(p []byte) (int, error) {
	c.once.Do(c.handshake)
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Write(p)
}

// ConnectionState returns the state after the handshake. net/http sets Request.TLS from
// it before it reads.
func (c *serverConn) ConnectionState() tls.ConnectionState {
	c.once.Do(c.handshake)
	return c.Conn.ConnectionState()
}

// plainHead and plainBody are the response to a client that speaks plain HTTP on a TLS port.
const (
	plainHead = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
	plainBody = `{"error":{"message":"this port speaks HTTPS: use https:// in place of http://","type":"BadRequestError","param":null,"code":400}}` + "\n"
)

// handshake performs the handshake. After an error, reads return io.EOF to the HTTP server, because no
// response can be sent.
func (c *serverConn) handshake() {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	err := c.HandshakeContext(ctx)
	if err == nil {
		return
	}
	c.listener.failed(c.RemoteAddr(), err)
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok && record.Conn != nil && looksLikeHTTP(record.RecordHeader) {
		_ = record.Conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = fmt.Fprintf(record.Conn, plainHead, len(plainBody), plainBody)
		// A close before the rest of the request was read would reset the connection, and the client
		// might not see the response (RFC 9112, 9.6).
		_, _ = io.Copy(io.Discard, record.Conn)
	}
	c.err = io.EOF
}

func looksLikeHTTP(head [5]byte) bool {
	switch string(head[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH":
		return true
	}
	return false
}
