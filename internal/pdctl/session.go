package pdctl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/etcdaccess"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// session is a connection to etcd for one command.
type session struct {
	cli    *clientv3.Client
	layout schema.Layout
	store  *store.Store
}

func (s *session) close() { _ = s.cli.Close() }

// settleEndpoints checks the endpoints and the prefix, so that a typing error
// is called one before anything is tried.
func (a *app) settleEndpoints() error {
	out, https, err := etcdaccess.ParseEndpoints(a.endpoints)
	switch {
	case err != nil:
		return usagef("--etcd-endpoints: %w", err)
	case len(out) == 0:
		return usagef("--etcd-endpoints is empty: give host:port, e.g. 127.0.0.1:2379")
	}
	a.endpoints, a.access.etcd.On = out, https
	if _, err := schema.NewLayout(a.prefix); err != nil {
		return cli.Wrong(err)
	}
	return nil
}

// dial makes a session without waiting for etcd, except to log in when a user is given.
func (a *app) dial() (*session, error) {
	layout, err := schema.NewLayout(a.prefix)
	if err != nil {
		return nil, cli.Wrong(err)
	}
	source, err := a.access.etcd.Open(nil)
	if err != nil {
		return nil, cli.Wrong(err)
	}
	client, err := etcd.Dial(etcd.Config{
		Endpoints: a.endpoints, Username: a.username, Password: a.password, DialTimeout: a.timeout,
		TLS: etcdaccess.ConfigOf(source), Intercept: a.interceptor(),
	})
	if errors.Is(err, etcd.ErrEndpoint) {
		return nil, cli.Wrong(err)
	}
	if err != nil {
		return nil, a.hint(err)
	}
	return &session{cli: client, layout: layout, store: store.New(client, layout, a.actor())}, nil
}

// interceptor keeps everything from etcd that writes, with --dry-run.
func (a *app) interceptor() grpc.UnaryClientInterceptor {
	if !a.dry {
		return nil
	}
	return a.rehearsal.intercept
}

// connect makes a session and sees etcd answer: without that every later error
// would be about a deadline instead of about what is wrong.
func (a *app) connect(ctx context.Context) (*session, error) {
	s, err := a.dial()
	if err != nil {
		return nil, err
	}
	for start := time.Now(); ; {
		_, err := etcd.Ping(ctx, s.cli, s.layout) // has its own deadline of 2 s
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, etcd.ErrUnreachable) || time.Since(start) >= a.timeout {
			s.close()
			return nil, a.hint(err)
		}
	}
}

// hint adds what pdctl's user can do about an etcd that is not there.
func (a *app) hint(err error) error {
	if !errors.Is(err, etcd.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w\nStart etcd (or a proxy, which embeds one), or name it by --etcd-endpoints host:port (PD_ETCD_ENDPOINTS); asked: %s",
		err, instance.Printable(strings.Join(a.endpoints, ", "), 300))
}

// etcdIsLocal tells whether every endpoint is on this machine's loopback.
func (a *app) etcdIsLocal() bool {
	for _, e := range a.endpoints {
		if !instance.IsLoopback(e) {
			return false
		}
	}
	return true
}

// keys reads "role address...". Every mistake in it is named, and nothing is
// done when there is one.
func (a *app) keys(args []string) ([]instance.Key, error) {
	role, err := instance.ParseRole(args[0])
	if err != nil {
		return nil, cli.Wrong(err)
	}
	return addresses(role, args[1:])
}

// addresses reads those of instances of a role.
func addresses(role instance.Role, args []string) ([]instance.Key, error) {
	var keys []instance.Key
	var errs []error
	for _, s := range args {
		address, err := instance.ParseAddress(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		keys = append(keys, instance.Key{Role: role, Address: address})
	}
	if len(errs) > 0 {
		return nil, cli.Wrongf("%w; nothing was done", errors.Join(errs...))
	}
	return keys, nil
}
