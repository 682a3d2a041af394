package testkit

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/pdmesh/pdmesh/sim/tcpserver"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// startTimeout bounds the start of an etcd on a machine that is busy with
// other tests.
const startTimeout = 60 * time.Second

// Etcd is a real etcd server of one member in the test's process, reached over
// TCP like any other. It does not wait for the disk, so a crash of the test
// process may lose data, and nothing else.
type Etcd struct {
	t             testing.TB
	dir, listen   string // of the data; host:port for clients
	cert, key, ca string // files for TLS with clients, which must present a certificate of ca; none: plain
	server        *embed.Etcd
	other         *EtcdProcess // instead of server if PD_TEST_ETCD names a program
}

// StartEtcd starts an etcd on a free port. It is stopped when the test ends,
// after the clients that Client made. Where PD_TEST_ETCD names an etcd program
// it is a process of that.
func StartEtcd(t testing.TB) *Etcd {
	t.Helper()
	if outside() != "" {
		p := StartEtcdProcess(t)
		return &Etcd{t: t, listen: p.Endpoint(), other: p}
	}
	return StartEtcdTLS(t, "", "", "")
}

// StartEtcdTLS is StartEtcd for one that speaks TLS with clients by these files; with ca
// they must show a certificate that it has signed.
func StartEtcdTLS(t testing.TB, cert, key, ca string) *Etcd {
	t.Helper()
	e := &Etcd{t: t, dir: t.TempDir(), listen: FreePort(t), cert: cert, key: key, ca: ca}
	e.start()
	t.Cleanup(e.Stop)
	return e
}

// start starts the server and waits until it serves.
func (e *Etcd) start() {
	e.t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = e.dir
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	client := url.URL{Scheme: "http", Host: e.listen}
	if e.cert != "" {
		client.Scheme = "https"
		cfg.ClientTLSInfo = transport.TLSInfo{CertFile: e.cert, KeyFile: e.key, TrustedCAFile: e.ca, ClientCertAuth: e.ca != ""}
	}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true
	cfg.BcryptCost = 4 // as of EtcdProcess
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	err := tcpserver.WhenFree(context.Background(), func() (err error) { e.server, err = embed.StartEtcd(cfg); return err })
	if err != nil {
		e.t.Fatalf("start etcd: %v", err)
	}
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case <-e.server.Server.ReadyNotify():
		return
	case err = <-e.server.Err():
	case <-timeout.C:
		err = fmt.Errorf("not ready within %s", startTimeout)
	}
	e.Stop()
	e.t.Fatalf("start etcd: %v", err)
}

// Endpoint is the host:port clients use. It stays the same over a Restart.
func (e *Etcd) Endpoint() string { return e.listen }

// Client makes a client that is closed when the test ends.
func (e *Etcd) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return Client(t, e.listen)
}

// Server is the embedded server, for tests that look inside; nil where another
// program is used.
func (e *Etcd) Server() *embed.Etcd { return e.server }

// Stop stops the server. Its data and its port stay for Restart.
func (e *Etcd) Stop() {
	if e.other != nil {
		e.other.Kill()
	}
	if e.server == nil {
		return
	}
	e.server.Close()
	e.server = nil
}

// Wipe stops the server and throws its data away: after Restart it is empty.
func (e *Etcd) Wipe() {
	e.t.Helper()
	if e.other != nil {
		e.other.Wipe()
		return
	}
	e.Stop()
	require.NoError(e.t, os.RemoveAll(e.dir))
}

// Restart stops the server, if it runs, and starts it on the same data and port.
func (e *Etcd) Restart() {
	e.t.Helper()
	if e.other != nil {
		e.other.Restart()
		return
	}
	e.Stop()
	e.start()
}

// Client makes a client of any etcd, closed when the test ends. It reconnects
// fast and makes no noise.
func Client(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	cli, err := quietClient(endpoints...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := cli.Close(); err != nil {
			t.Logf("close etcd client: %v", err)
		}
	})
	return cli
}

func quietClient(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientConfig(endpoints...))
}

func clientConfig(endpoints ...string) clientv3.Config {
	return clientv3.Config{
		Endpoints: endpoints,
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		})},
	}
}

// FreePort returns a TCP address on the loopback that no process listens on, and that
// the kernel assigns to no other socket before a test listens there itself.
func FreePort(t testing.TB) string {
	t.Helper()
	return quietPorts(t, 1)[0]
}
