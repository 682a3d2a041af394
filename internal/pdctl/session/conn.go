package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Conn is a connection to etcd.
type Conn struct {
	Client *clientv3.Client
	Layout schema.Layout
	Store  *store.Store
}

// Close closes the connection.
func (c *Conn) Close() { _ = c.Client.Close() }

// dial creates the client. It does not wait for etcd, except to authenticate if a user is set.
func (s *Session) dial() (*Conn, error) {
	source, err := s.Etcd.TLS.Open(nil)
	if err != nil {
		return nil, cli.Wrong(err)
	}
	client, err := etcd.Dial(etcd.Config{
		Endpoints: s.Etcd.Endpoints, Username: s.Etcd.Username, Password: s.Etcd.password, DialTimeout: s.Timeout,
		TLS: access.ConfigOf(source), Intercept: s.Dry.Interceptor(),
	})
	if errors.Is(err, access.ErrEndpoint) {
		return nil, cli.Wrong(err)
	}
	if err != nil {
		return nil, s.Hint(err)
	}
	return &Conn{Client: client, Layout: s.Etcd.Layout, Store: store.New(client, s.Etcd.Layout, Actor())}, nil
}

// Connect connects and waits for an answer of etcd. Otherwise every later error would report a
// deadline instead of the cause. If there are several members, it tries at least two: one may be cut off.
func (s *Session) Connect(ctx context.Context) (*Conn, error) {
	c, err := s.dial()
	if err != nil {
		return nil, err
	}
	for start, tries := time.Now(), 1; ; tries++ {
		_, err := etcd.Ping(ctx, c.Client, c.Layout) // has its own deadline of 2 s
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, etcd.ErrUnreachable) || time.Since(start) >= s.Timeout && tries >= min(2, len(s.Etcd.Endpoints)) {
			c.Close()
			return nil, s.Hint(err)
		}
	}
}

// With connects, calls do, and closes the connection.
func (s *Session) With(ctx context.Context, do func(*Conn) error) error {
	conn, err := s.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(conn)
}

// CheckRevision returns an error if etcd has no such revision yet.
func (s *Session) CheckRevision(ctx context.Context, conn *Conn, revision int64) error {
	at, err := etcd.Ping(ctx, conn.Client, conn.Layout)
	switch {
	case err != nil:
		return s.Hint(err)
	case at < revision:
		return fmt.Errorf("there is no revision %d yet: etcd is at %d", revision, at)
	}
	return nil
}

// Seen returns the fleet as the proxies see it, and the proxies.
func (s *Session) Seen(ctx context.Context, conn *Conn) (*instance.Snapshot, []lease.ProxyPresence, error) {
	snap, err := conn.Store.Reader.Snapshot(ctx)
	if err != nil {
		return nil, nil, s.Hint(err)
	}
	proxies, err := conn.Store.Reader.Proxies(ctx)
	if err != nil {
		return nil, nil, s.Hint(err)
	}
	return lease.Seen(snap, proxies), proxies, nil
}

// NoteKept prints a note if proxies use keys of a former etcd that the present one lacks. begin is the
// prefix of these keys, below the root.
func (s *Session) NoteKept(proxies []lease.ProxyPresence, begin string) {
	kept := map[string]bool{}
	for i := range proxies {
		for _, key := range proxies[i].Kept {
			if strings.HasPrefix(key, begin) {
				kept[key] = true
			}
		}
	}
	if len(kept) > 0 {
		fmt.Fprintf(s.Out.Stderr, "Note: proxies use %s of a former etcd, which the present one lacks: pdctl restore --all writes them back, pdctl forget --all drops them\n", cli.Count(len(kept), "key"))
	}
}

const hint = "\nStart etcd (or a proxy with an embedded etcd), or set its address with --etcd-endpoints host:port (PD_ETCD_ENDPOINTS). Tried: "

// WithoutHint returns the message of an error without the text that Hint has added.
func WithoutHint(err error) string {
	text, _, _ := strings.Cut(err.Error(), hint)
	return text
}

// Hint adds the flags that set the address of etcd to an error about an etcd that does not answer.
func (s *Session) Hint(err error) error {
	if !errors.Is(err, etcd.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	tried := instance.Printable(strings.Join(s.Etcd.Endpoints, ", "), 300)
	if s.canProxy {
		tried += proxyHint
	}
	return fmt.Errorf("%w%s%s", err, hint, tried)
}

// RefusedUser reports whether etcd answers, but refuses this user.
func RefusedUser(err error) bool {
	refusals := []error{rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed, rpctypes.ErrInvalidAuthToken, rpctypes.ErrPermissionDenied}
	return slices.ContainsFunc(refusals, func(is error) bool { return errors.Is(err, is) })
}
