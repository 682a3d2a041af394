package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// shakeLimit is for a client's handshake.
	shakeLimit = 10 * time.Second
	// sayAgain is between two lines in the log about the same reason.
	sayAgain = 10 * time.Second
)

// Listener speaks TLS on the connections of another one. Its connections shake hands
// when they are first read or written, so that a slow client holds up no one else.
type Listener struct {
	net.Listener
	config *tls.Config
	log    logrus.FieldLogger

	mu      sync.Mutex // guards what follows
	refused map[Reason]int64
	said    map[Reason]time.Time
}

// Listen makes a Listener.
func (s *Source) Listen(ln net.Listener, log logrus.FieldLogger) *Listener {
	return &Listener{Listener: ln, config: s.Server(), log: log, refused: map[Reason]int64{}, said: map[Reason]time.Time{}}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &serverConn{Conn: tls.Server(nc, l.config), listener: l}, nil
}

// RefusedCounts reports how many handshakes failed, by reason.
func (l *Listener) RefusedCounts() map[Reason]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.refused)
}

// failed counts a handshake, and logs it if its reason was not logged a moment ago.
func (l *Listener) failed(client net.Addr, err error) {
	reason, text, ok := Refused(err)
	switch {
	case reason == NoTLS:
		text = "it does not speak TLS"
	case !ok:
		reason, text = Closed, "it went away, or said nothing in time"
	}
	l.mu.Lock()
	l.refused[reason]++
	all := l.refused[reason]
	say := time.Since(l.said[reason]) >= sayAgain
	if say {
		l.said[reason] = time.Now()
	}
	l.mu.Unlock()
	if !say || l.log == nil {
		return
	}
	log := l.log.WithFields(logrus.Fields{"client": client.String(), "reason": string(reason), "refused": all})
	if reason == Closed {
		log.Debug("no TLS with a client: " + text)
		return
	}
	log.Warn("no TLS with a client: " + text)
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
	c.once.Do(c.shake)
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(p)
}

// Write implements net.Conn. A server of HTTP/2 begins with it.
func (c *serverConn) Write(p []byte) (int, error) {
	c.once.Do(c.shake)
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Write(p)
}

// ConnectionState returns the state after the handshake. net/http sets Request.TLS from
// it before it reads.
func (c *serverConn) ConnectionState() tls.ConnectionState {
	c.once.Do(c.shake)
	return c.Conn.ConnectionState()
}

// plainAnswer is for a client that speaks plain HTTP here.
const plainAnswer = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" +
	`{"error":{"message":"this port speaks HTTPS: use https:// in place of http://","type":"BadRequestError","param":null,"code":400}}` + "\n"

// shake performs the handshake. After an error the server gets io.EOF, because it
// cannot send an answer.
func (c *serverConn) shake() {
	ctx, cancel := context.WithTimeout(context.Background(), shakeLimit)
	defer cancel()
	err := c.HandshakeContext(ctx)
	if err == nil {
		return
	}
	c.listener.failed(c.RemoteAddr(), err)
	var record tls.RecordHeaderError
	if errors.As(err, &record) && record.Conn != nil && looksLikeHTTP(record.RecordHeader) {
		_ = record.Conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = record.Conn.Write([]byte(plainAnswer))
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
