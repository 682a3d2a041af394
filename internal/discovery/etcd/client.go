// Package etcd creates the etcd client of the other packages of discovery. It adds deadlines of
// calls, a balancer that stays at one member, errors that name a remedy, and reads of the
// membership.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Deadlines of single calls to etcd.
const (
	CallTimeout     = 3 * time.Second
	pingTimeout     = 2 * time.Second
	diagnoseTimeout = 500 * time.Millisecond // of a query for the reason why a call has failed
)

// The flow control windows of gRPC: for one stream (a list of ten thousand instances, or the
// backlog of a watch), and for the connection. They are fixed, since gRPC estimates others by a
// ping for each piece of data: two writes and two reads for every event of a watch. A window is a
// limit; no memory is allocated for it.
const (
	streamWindow = 4 << 20
	connWindow   = 16 << 20
)

// ErrUnreachable is wrapped when no endpoint answered in time.
var ErrUnreachable = errors.New("etcd does not answer")

// Config configures the connection to etcd.
type Config struct {
	Endpoints          []string // host:port; a scheme in front is ignored, see TLS
	Username, Password string
	// TLS returns the configuration for a new connection; nil: plain TCP.
	TLS func() *tls.Config
	Log logrus.FieldLogger // receives the lines of the client library at debug level; nil drops them
	// DialTimeout bounds a single login, default 3 s.
	DialTimeout time.Duration
	// Intercept is an interceptor of all calls except watches and other streams; nil: none.
	Intercept grpc.UnaryClientInterceptor
	why       *lastRefusal // of the client for which this one logs in; otherwise nil
}

// Dial returns a client. It waits neither for a connection (see Ping) nor for a login: a program
// must start while etcd is unavailable.
//
// The settings keep watches alive. HTTP/2 pings detect a hung member after 13 s: 10 s is the least
// that grpc-go allows, plus 3 s for the answer. Connections without a call are not pinged, since
// etcd closes them for that ("too_many_pings"). The backoff of reconnects ends at 3 s, not at
// gRPC's 120 s, so that a returning etcd is found soon. One of several members gets all calls until
// it fails to answer one. So a call with a deadline detects a hung member long before the pings do.
func Dial(cfg Config) (*clientv3.Client, error) {
	endpoints, _, err := access.ParseEndpoints(cfg.Endpoints)
	switch {
	case err != nil:
		return nil, err
	case len(endpoints) == 0:
		return nil, fmt.Errorf("%w: none given", access.ErrEndpoint)
	}
	why := cmp.Or(cfg.why, &lastRefusal{log: cfg.Log, tls: cfg.TLS != nil})
	var secure []grpc.DialOption
	var first *tls.Config
	if cfg.TLS != nil {
		first = cfg.TLS()
		secure = append(secure, grpc.WithTransportCredentials(newHandshaker(cfg.TLS, why)))
	}
	var cli *clientv3.Client
	token := ""
	if cfg.Username != "" {
		token = firstToken
		secure = append(secure, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
			cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			if method != etcdserverpb.Auth_Authenticate_FullMethodName {
				return next(ctx, method, req, reply, cc, opts...)
			}
			return logIn(ctx, cc, Config{Endpoints: cli.Endpoints(), TLS: cfg.TLS, Log: cfg.Log, why: why}, req, reply)
		}))
	}
	if cfg.Intercept != nil {
		secure = append(secure, grpc.WithChainUnaryInterceptor(cfg.Intercept))
	}
	cli, err = clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		Token:                token,
		TLS:                  first, // so that endpoints need no https://; secure does the handshake
		Context:              context.WithValue(context.Background(), refusalKey{}, why),
		DialTimeout:          cmp.Or(cfg.DialTimeout, CallTimeout),
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               ZapLogger(cfg.Log, zapcore.DebugLevel),
		DialOptions: append(secure,
			grpc.WithNoProxy(), // HTTPS_PROXY applies to plain TCP, too
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
				MinConnectTimeout: 2 * time.Second,
			}),
			grpc.WithStaticStreamWindowSize(streamWindow),
			grpc.WithStaticConnWindowSize(connWindow),
			grpc.WithDisableServiceConfig(), // the library's is round robin
			grpc.WithDefaultServiceConfig(stickyConfig),
		),
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(endpoints, ", "), err)
	}
	// From here on the library logs in by itself.
	cli.Token, cli.Username, cli.Password = "", cfg.Username, cfg.Password
	return cli, nil
}

// firstToken keeps clientv3.New from logging in, where a failure would be final. The server refuses
// this token, which makes the library log in, as it does whenever a token has expired.
const firstToken = "not-logged-in-yet"

// logIn sends an Authenticate request over a separate connection, without a token. clientv3 adds
// its last token to every call, and etcd 3.4 refuses to log in a client with an invalid one. logIn
// first waits for cc, the connection of the calls: clientv3 logs in for each attempt to open a
// stream, and only cc backs off between its dials.
func logIn(ctx context.Context, cc *grpc.ClientConn, cfg Config, request, response any) error {
	for state := cc.GetState(); state != connectivity.Ready; state = cc.GetState() {
		if state == connectivity.Shutdown {
			return status.Error(codes.Canceled, "log in: the client is closed")
		}
		if cc.Connect(); !cc.WaitForStateChange(ctx, state) {
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	cli, err := Dial(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = cli.Close() }()
	return cli.ActiveConnection().Invoke(ctx, etcdserverpb.Auth_Authenticate_FullMethodName, request, response)
}

// Ping reads the schema key with a linearizable read, so that an answer means that etcd has a
// quorum, not only that a process listens. It returns the store's revision. The error names the
// endpoints and the operation.
func Ping(ctx context.Context, cli *clientv3.Client, l schema.Layout) (revision int64, err error) {
	cctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	resp, err := cli.Get(cctx, l.Schema(), clientv3.WithKeysOnly())
	if err != nil {
		return 0, Explain(ctx, cli, "ping", err, true)
	}
	return resp.Header.Revision, nil
}

// Explain adds the endpoints and a remedy to an error of the client library. The library waits
// for a connection until the deadline and then reports only the deadline. If withDiagnosis is set, Explain
// finds the reason by a connection attempt; otherwise it repeats the last one. Loops that keep failing
// set it for their first failure, and seldom after it.
func Explain(ctx context.Context, cli *clientv3.Client, what string, err error, withDiagnosis bool) error {
	at := strings.Join(cli.Endpoints(), ", ")
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: etcd at %s: %w", what, at, ctx.Err())
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%s: etcd at %s is out of space (alarm NOSPACE) and takes no writes; pdctl doctor has the cause and the cure: %w", what, at, err)
	case errors.Is(err, rpctypes.ErrNoLeader), errors.Is(err, rpctypes.ErrGRPCNoLeader):
		return fmt.Errorf("%s: etcd at %s has no leader (most of its members are away): %w", what, at, err)
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("%s: etcd at %s denies this user access to these keys; grant its role readwrite on the prefix: %w", what, at, err)
	case errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrInvalidAuthToken):
		return fmt.Errorf("%s: etcd at %s does not accept this user name and password: %w", what, at, err)
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.Unavailable:
		switch text := refusal(cli); {
		case text != "":
			at += " (" + text + ")"
		case withDiagnosis:
			text = diagnose(ctx, cli)
			reasons(cli).diagnosis.Store(&text)
			at += " (" + text + ")"
		default:
			if last := reasons(cli).diagnosis.Load(); last != nil {
				at += " (" + *last + ")"
			}
		}
		return fmt.Errorf("%s: %w: %s; is it running, and is the address right? (%w)", what, ErrUnreachable, at, err)
	default:
		return fmt.Errorf("%s: etcd at %s: %w", what, at, err)
	}
}

// diagnose queries the status of each endpoint once, and describes the results.
func diagnose(ctx context.Context, cli *clientv3.Client) string {
	results := make([]string, len(cli.Endpoints()))
	var work sync.WaitGroup
	for i, e := range cli.Endpoints() {
		work.Go(func() { results[i] = diagnoseEndpoint(ctx, cli, e) })
	}
	work.Wait()
	return strings.Join(results, "; ")
}

func diagnoseEndpoint(ctx context.Context, cli *clientv3.Client, e string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*diagnoseTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", e)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }() // only a probe
	half, cancel := context.WithTimeout(ctx, diagnoseTimeout)
	defer cancel()
	s, err := cli.Status(half, e)
	switch {
	case err == nil && s.Leader == 0:
		return e + " has no leader: most members of its cluster are away"
	case err == nil:
		return e + " is running but does not answer in time"
	case !overTLS(cli) && certs.Speaks(ctx, conn):
		return e + " speaks TLS: write https://" + e + ", and name its CA with --etcd-ca"
	}
	return e + " takes connections but does not answer as etcd"
}
