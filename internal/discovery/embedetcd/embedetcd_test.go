package embedetcd_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestMain(m *testing.M) { leak.Main(m) }

func config(t testing.TB, listen string) embedetcd.Config {
	t.Helper()
	return embedetcd.Config{ListenClient: listen, DataDir: filepath.Join(t.TempDir(), "etcd"), Gateway: true, Prefix: "/pd", Unsynced: true}
}

func start(t testing.TB, cfg embedetcd.Config) *embedetcd.Server {
	t.Helper()
	s, err := embedetcd.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func TestKeepsItsData(t *testing.T) {
	t.Parallel()
	cfg := config(t, strings.Replace(testkit.FreePort(t), "127.0.0.1", "localhost", 1))
	s := start(t, cfg)
	cli := etcdtest.Client(t, s.Endpoint())
	info, err := os.Stat(cfg.DataDir)
	require.NoError(t, err, "data directory")
	require.EqualValues(t, 0o700, info.Mode().Perm(), "data directory")
	members.Put(t, cli, "/pd/x", "kept")
	assert.True(t, s.Checkpoints(), "time limits begin again with each start")
	s.Close() // with a client connected
	start(t, cfg)
	resp, err := cli.Get(t.Context(), "/pd/x")
	require.True(t, err == nil && len(resp.Kvs) == 1 && string(resp.Kvs[0].Value) == "kept", "%v, %v", resp, err)
}

// secured returns a configuration with TLS that requires client certificates.
func secured(t *testing.T, a *testkit.Authority) embedetcd.Config {
	t.Helper()
	cfg := config(t, "127.0.0.1:0")
	cfg.TLS.Cert, cfg.TLS.Key = a.Issue("etcd", testkit.Certificate{CN: "etcd", Hosts: []string{"127.0.0.1"}})
	cfg.TLS.CA = a.CA
	return cfg
}

func secureClient(t *testing.T, endpoint, user, password string, config *tls.Config) *clientv3.Client {
	t.Helper()
	cc := etcd.Config{Endpoints: []string{endpoint}, Username: user, Password: password}
	if config != nil {
		cc.TLS = func() *tls.Config { return config }
	}
	return members.DialWith(t, cc)
}

func TestServesTLS(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t, "ours")
	a.Issue("client", testkit.Certificate{CN: "client"})
	var log testkit.Buffer
	cfg := secured(t, a)
	logger := logrus.New()
	logger.SetOutput(&log)
	cfg.Log = logger
	s := start(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	good := &tls.Config{RootCAs: a.Pool(), Certificates: []tls.Certificate{a.Pair("client")}}
	cli := secureClient(t, s.Endpoint(), "", "", good)
	watch := cli.Watch(ctx, "/pd/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	resp := <-watch
	require.True(t, resp.Created, "%+v", resp)
	if _, err := cli.Put(ctx, "/pd/x", "v"); err != nil {
		t.Fatal(err)
	}
	resp = <-watch
	require.Equal(t, 1, len(resp.Events), "%+v", resp)

	// A client without a certificate, a client without TLS and a client at etcd's internal port are refused.
	for name, c := range map[string]*tls.Config{"without a certificate": {RootCAs: a.Pool()}, "without TLS": nil} {
		short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		_, err := secureClient(t, s.Endpoint(), "", "", c).Get(short, "/pd/x")
		assert.Error(t, err, "%s: it answers", name)
		cancel()
	}
	testkit.Eventually(t, time.Minute, func() error {
		for _, reason := range []certs.Reason{certs.NoCertificate, certs.NoTLS} {
			if !strings.Contains(log.String(), "reason="+string(reason)) {
				return fmt.Errorf("no word of %s: %s", reason, &log)
			}
		}
		return nil
	})
	_, err := secureClient(t, s.OwnPort(), "", "", nil).Get(ctx, "/pd/x")
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "use https://"+s.Endpoint()) {
		t.Errorf("etcd's own port: %v", err)
	}
}

// A rotated certificate and a rotated authority apply to the next connection; an open connection continues.
func TestTLS_Rotation(t *testing.T) {
	t.Parallel()
	a, next := testkit.NewAuthority(t, "ours"), testkit.NewAuthority(t, "next")
	a.Issue("client", testkit.Certificate{CN: "client"})
	next.Issue("client", testkit.Certificate{CN: "client"})
	cfg := secured(t, a)
	s := start(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	old := secureClient(t, s.Endpoint(), "", "", &tls.Config{RootCAs: a.Pool(), Certificates: []tls.Certificate{a.Pair("client")}})
	_, err := old.Put(ctx, "/pd/x", "v")
	require.NoError(t, err)
	cert, key := next.Issue("etcd", testkit.Certificate{CN: "etcd", Hosts: []string{"127.0.0.1"}})
	for to, from := range map[string]string{cfg.TLS.Cert: cert, cfg.TLS.Key: key, cfg.TLS.CA: next.CA} {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
		require.NoError(t, err)
	}
	testkit.Eventually(t, time.Minute, func() error {
		cli := secureClient(t, s.Endpoint(), "", "", &tls.Config{RootCAs: next.Pool(), Certificates: []tls.Certificate{next.Pair("client")}})
		defer func() { _ = cli.Close() }()
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := cli.Get(short, "/pd/x")
		return err
	})
	_, err = old.Get(ctx, "/pd/x")
	assert.NoError(t, err, "the connection that stood")
}

// Users work with TLS as without it, also after a restart.
func TestUsersOverTLS(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t, "ours")
	cfg := secured(t, a)
	cfg.TLS.CA, cfg.ListenClient = "", testkit.FreePort(t)
	s := start(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tc := &tls.Config{RootCAs: a.Pool()}
	cli := secureClient(t, s.Endpoint(), "", "", tc)
	_, err := cli.UserAdd(ctx, "root", "secret")
	require.NoError(t, err)
	_, err = cli.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = cli.AuthEnable(ctx)
	require.NoError(t, err)
	for _, when := range []string{"at once", "after a restart"} {
		_, err = cli.Get(ctx, "/pd/x")
		assert.ErrorIs(t, err, rpctypes.ErrUserEmpty, "%s: cannot read", when)
		root := secureClient(t, s.Endpoint(), "root", "secret", tc)
		_, err = root.Put(ctx, "/pd/x", when)
		assert.NoError(t, err, "%s: root writes", when)
		if when == "at once" {
			s.Close()
			s = start(t, cfg)
		}
	}
}

func TestTLS_MissingFile(t *testing.T) {
	t.Parallel()
	cfg := config(t, "127.0.0.1:0")
	cfg.TLS = certs.Files{Cert: filepath.Join(t.TempDir(), "not.pem"), Key: "not-key.pem"}
	_, err := embedetcd.Start(t.Context(), cfg)
	assert.ErrorContains(t, err, "not.pem")
}
