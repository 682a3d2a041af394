package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/credentials"

	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// handshaker does the TLS handshake with the current configuration, and records why the last one
// failed: a call returns only that its deadline has passed.
type handshaker struct {
	credentials.TransportCredentials
	config func() *tls.Config
	why    *lastRefusal
}

func newHandshaker(config func() *tls.Config, why *lastRefusal) *handshaker {
	return &handshaker{TransportCredentials: credentials.NewTLS(config()), config: config, why: why}
}

// ClientHandshake implements credentials.TransportCredentials.
func (s *handshaker) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	nc, info, err := credentials.NewTLS(s.config().Clone()).ClientHandshake(ctx, authority, raw)
	if err != nil {
		if _, _, ok := certs.Refused(err); !ok && isPlain(ctx, raw.RemoteAddr().String()) {
			err = tls.RecordHeaderError{Msg: err.Error()}
		}
		s.why.set(authority, err)
		return nc, info, err
	}
	return &firstReadConn{Conn: nc, authority: authority, why: s.why}, info, nil
}

// isPlain reports whether the server at an address speaks HTTP/2 without TLS. An etcd without TLS
// closes a connection that starts with a handshake, without an answer.
func isPlain(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, diagnoseTimeout)
	defer cancel()
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer func() { _ = nc.Close() }()
	if until, ok := ctx.Deadline(); ok {
		_ = nc.SetDeadline(until)
	}
	// The preface with empty SETTINGS, which a server answers with its own (RFC 9113, 3.4).
	_, _ = io.WriteString(nc, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	var head [9]byte
	_, err = io.ReadFull(nc, head[:])
	return err == nil && head[0] == 0 && head[3] == 4
}

// Clone implements credentials.TransportCredentials.
func (s *handshaker) Clone() credentials.TransportCredentials {
	return &handshaker{TransportCredentials: s.TransportCredentials.Clone(), config: s.config, why: s.why}
}

// firstReadConn is a connection whose first read may fail because the server refuses our certificate: in
// TLS 1.3 the client's handshake ends before the server has checked it.
type firstReadConn struct {
	net.Conn
	authority string
	why       *lastRefusal
	hasRead   bool // data was read; used by the reading goroutine only
}

// Read implements net.Conn.
func (w *firstReadConn) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	switch {
	case n > 0 && !w.hasRead:
		w.hasRead = true
		w.why.text.Store(nil)
	case err != nil && !w.hasRead:
		w.why.set(w.authority, err)
	}
	return n, err
}

// lastRefusal has the reason for the last failure of TLS with etcd, and the last diagnosis of others.
type lastRefusal struct {
	log       logrus.FieldLogger // nil: silent
	tls       bool               // whether TLS is used
	text      atomic.Pointer[string]
	diagnosis atomic.Pointer[string] // last result of diagnose; nil before the first one
}

func (l *lastRefusal) set(authority string, err error) {
	var e *certs.Error
	if !errors.As(certs.Explain(err), &e) {
		return // not a TLS error
	}
	text := "TLS with " + authority + ": " + e.Text
	if was := l.text.Swap(&text); l.log != nil && (was == nil || *was != text) {
		l.log.Error("no connection to etcd: " + text)
	}
}

type refusalKey struct{}

// reasons returns what is known of the failures of a client. It is stored in the client's
// context, since callers have only the client.
func reasons(cli *clientv3.Client) *lastRefusal {
	if l, ok := cli.Ctx().Value(refusalKey{}).(*lastRefusal); ok {
		return l
	}
	return new(lastRefusal)
}

// refusal returns the reason for the last failure of TLS with etcd, "" if there is none.
func refusal(cli *clientv3.Client) string {
	if text := reasons(cli).text.Load(); text != nil {
		return *text
	}
	return ""
}

// overTLS reports whether a client uses TLS.
func overTLS(cli *clientv3.Client) bool { return reasons(cli).tls }
