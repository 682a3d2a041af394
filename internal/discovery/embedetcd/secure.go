package embedetcd

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pdmesh/pdmesh/internal/httpapi/connlimit"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// securePort is the client port with TLS. It serves only gRPC, and over a separate listener,
// since etcd's listener reads the CA of clients only once. Calls on another port are refused,
// and those of other machines while etcd has no users.
type securePort struct {
	net.Listener // TLS
	address      string
	source       *certs.Source
	log          logrus.FieldLogger
	hasUsers     func() bool // set before serve

	refusals rate.Sometimes // limits log entries about refused calls
}

func openSecurePort(listen string, files certs.Files, log logrus.FieldLogger) (*securePort, error) {
	// The parent process reports changed files.
	source, err := certs.Open(certs.Options{Use: certs.UseEtcdListener, Files: files, Protocol: "h2"})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCertificate, err)
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	p := &securePort{address: ln.Addr().String(), source: source, log: log, refusals: rate.Sometimes{Interval: 10 * time.Second}}
	// Unauthenticated connections must not use up the descriptors that etcd needs for its
	// files.
	p.Listener = source.Listen(transport.LimitListener(ln, maxConnections()), log)
	return p, nil
}

// maxConnections returns the limit of simultaneous connections.
func maxConnections() int {
	const enough = 1 << 14
	if n := connlimit.ByDescriptors(); n > 0 && n < enough {
		return n
	}
	return enough
}

// serve serves clients until the server stops. hasUsers reports whether authentication is on.
func (p *securePort) serve(ctx context.Context, g *grpc.Server, hasUsers func() bool, work *sync.WaitGroup) {
	p.hasUsers = hasUsers
	work.Go(func() { p.source.Watch(ctx) })
	work.Go(func() { _ = g.Serve(p.Listener) }) // returns only when the server stops
	if !beyondLoopback(p.address) || hasUsers() {
		return
	}
	p.log.Warn("the embedded etcd has no users yet, so it accepts only this machine. Create users here: " + p.cure())
}

func (p *securePort) cure() string {
	return "pdctl --etcd-endpoints https://" + p.address + " --etcd-ca ca.pem auth init --apply (docs/tls.md)"
}

// options returns the interceptors that run the check before every call.
func (p *securePort) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := p.check(ctx); err != nil {
				return nil, err
			}
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := p.check(stream.Context()); err != nil {
				return err
			}
			return next(srv, stream)
		}),
	}
}

// check returns an error if the call does not come from a permitted address.
func (p *securePort) check(ctx context.Context) error {
	from, ok := peer.FromContext(ctx)
	switch {
	case !ok || from.LocalAddr == nil || from.LocalAddr.String() != p.address:
		return status.Error(codes.FailedPrecondition, "this etcd speaks TLS: use https://"+p.address)
	case sameMachine(from.Addr, from.LocalAddr) || p.hasUsers():
		return nil
	}
	p.refusals.Do(func() {
		p.log.WithField("client", from.Addr.String()).Warn("refused a call from another machine: the embedded etcd has no users yet. Create users here: " + p.cure())
	})
	return status.Error(codes.FailedPrecondition, "this etcd has no users yet and serves its own machine only; set them up there: "+p.cure())
}

// sameMachine reports whether a connection comes from this machine: from the loopback, or from
// the address that it was made to.
func sameMachine(from, to net.Addr) bool {
	client, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return false
	}
	server, err := netip.ParseAddrPort(to.String())
	return client.Addr().Unmap().IsLoopback() || err == nil && client.Addr().Unmap() == server.Addr().Unmap()
}

func beyondLoopback(address string) bool {
	ap, err := netip.ParseAddrPort(address)
	return err != nil || !ap.Addr().Unmap().IsLoopback()
}
