package testkit

import (
	"cmp"
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
	t      testing.TB
	cfg    memberConfig
	server *embed.Etcd
	other  *EtcdProcess // instead of server where PD_TEST_ETCD names a program
}

// StartEtcd starts an etcd on a free port. It is stopped when the test ends,
// after the clients that Client made. Where PD_TEST_ETCD names an etcd program
// it is a process of that.
func StartEtcd(t testing.TB) *Etcd {
	t.Helper()
	if outside() != "" {
		p := StartEtcdProcess(t)
		return &Etcd{t: t, cfg: p.cfg, other: p}
	}
	return StartEtcdTLS(t, "", "", "")
}

// StartEtcdTLS is StartEtcd for one that speaks TLS with clients by these files; with ca
// they must show a certificate that it has signed.
func StartEtcdTLS(t testing.TB, cert, key, ca string) *Etcd {
	t.Helper()
	e := &Etcd{t: t, cfg: memberConfig{Dir: t.TempDir(), Listen: FreePort(t), Cert: cert, Key: key, CA: ca}}
	e.start()
	t.Cleanup(e.Stop)
	return e
}

func (e *Etcd) start() {
	e.t.Helper()
	server, err := runEtcd(e.cfg)
	if err != nil {
		e.t.Fatalf("start etcd: %v", err)
	}
	e.server = server
}

// memberConfig is what one member is started with.
type memberConfig struct {
	Dir    string // of its data
	Listen string // host:port for clients
	// Of a member of a cluster; all empty for one alone.
	Name    string
	Peer    string // host:port for the other members
	Cluster string // name=url of every member
	Joins   bool   // it was added to a cluster that exists
	// QuotaBytes makes writes fail once the data are that large; 0 is etcd's default.
	QuotaBytes int64
	// TokenTTL is how many seconds a login lasts; 0 is etcd's default of 300.
	TokenTTL uint
	// Files for TLS with clients, who must show a certificate of CA; none: plain.
	Cert, Key, CA string
}

// runEtcd starts an embedded etcd and waits until it serves.
func runEtcd(m memberConfig) (*embed.Etcd, error) {
	cfg := embed.NewConfig()
	cfg.Dir = m.Dir
	cfg.Name = cmp.Or(m.Name, "test")
	peer := url.URL{Scheme: "http", Host: cmp.Or(m.Peer, "127.0.0.1:0")}
	client := url.URL{Scheme: "http", Host: m.Listen}
	if m.Cert != "" {
		client.Scheme = "https"
		cfg.ClientTLSInfo = transport.TLSInfo{CertFile: m.Cert, KeyFile: m.Key, TrustedCAFile: m.CA, ClientCertAuth: m.CA != ""}
	}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.InitialCluster = cmp.Or(m.Cluster, cfg.InitialClusterFromName(cfg.Name))
	if m.Joins {
		cfg.ClusterState = embed.ClusterStateFlagExisting
	}
	cfg.QuotaBackendBytes = m.QuotaBytes
	if m.TokenTTL > 0 {
		cfg.AuthTokenTTL = m.TokenTTL
	}
	cfg.UnsafeNoFsync = true
	cfg.BcryptCost = 4 // the least there is: a login must not cost a second under the race detector
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	var server *embed.Etcd
	err := tcpserver.WhenFree(context.Background(), func() (err error) { server, err = embed.StartEtcd(cfg); return err })
	if err != nil {
		return nil, err
	}
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case err := <-server.Err():
		server.Close()
		return nil, err
	case <-timeout.C:
		server.Close()
		return nil, fmt.Errorf("not ready within %s", startTimeout)
	}
}

// Endpoint is the host:port clients use. It stays the same over a Restart.
func (e *Etcd) Endpoint() string { return e.cfg.Listen }

// Client makes a client that is closed when the test ends.
func (e *Etcd) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return Client(t, e.cfg.Listen)
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
	require.NoError(e.t, os.RemoveAll(e.cfg.Dir))
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
