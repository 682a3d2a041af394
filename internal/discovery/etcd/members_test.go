package etcd_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/disk"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestMembers_AddressesNeverUsed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url    string
		secure bool
		want   string
	}{
		{"http://10.0.0.1:2379", false, "10.0.0.1:2379"},
		{"https://10.0.0.1:2379", true, "10.0.0.1:2379"},
		{"https://etcd-1.example.com:2379", true, "etcd-1.example.com:2379"},
		{"http://[2001:db8::1]:2379", false, "[2001:db8::1]:2379"},
		{"http://10.0.0.1:2379", true, ""},
		{"https://10.0.0.1:2379", false, ""},
		{"http://localhost:2379", false, ""},
		{"http://LOCALHOST.:2379", false, ""},
		{"http://etcd.localhost:2379", false, ""},
		{"http://127.0.0.1:2379", false, ""},
		{"http://127.1.2.3:2379", false, ""},
		{"http://[::1]:2379", false, ""},
		{"http://[::ffff:127.0.0.1]:2379", false, ""},
		{"http://0.0.0.0:2379", false, ""},
		{"http://[::]:2379", false, ""},
		{"http://169.254.169.254:80", false, ""},
		{"http://10.0.0.1", false, ""},
		{"http://:2379", false, ""},
		{"unix://10.0.0.1:2379", false, ""},
		{"10.0.0.1:2379", false, ""},
		{"%", false, ""},
	} {
		assert.Equal(t, c.want, etcd.MemberAddress(c.url, c.secure), "%s, TLS %t", c.url, c.secure)
	}
}

// clusterOf returns the id of the cluster behind an endpoint.
func clusterOf(t *testing.T, endpoint string) uint64 {
	t.Helper()
	resp, err := etcdtest.Client(t, endpoint).Get(t.Context(), "/any")
	require.NoError(t, err)
	return resp.Header.ClusterId
}

// newMembers returns Members that are saved in dir.
func newMembers(t *testing.T, dir, configured string) (*etcd.Members, func() []string) {
	t.Helper()
	cli := members.Dial(t, configured)
	m := etcd.NewMembers(etcd.MembersOptions{
		Client: cli,
		Load:   func() (etcd.SavedMembers, error) { return disk.ReadMembers(dir) },
		Save:   func(s etcd.SavedMembers) error { return disk.WriteMembers(dir, s) },
	})
	m.Start()
	return m, cli.Endpoints
}

// Saved members are used while no configured endpoint answers, if
// neither the cluster nor the configuration has changed.
func TestMembers_Saved(t *testing.T) {
	t.Parallel()
	host := etcdtest.OutsideAddress(t)
	server := etcdtest.Start(t, etcdtest.WithHost(host))
	dead, other := testkit.FreePort(t), testkit.FreePort(t)
	id := clusterOf(t, server.Endpoint())
	for _, c := range []struct {
		name  string
		saved etcd.SavedMembers
		want  []string
	}{
		{"the same", etcd.SavedMembers{Configured: []string{dead}, Cluster: id, Members: []string{server.Endpoint()}}, []string{dead, server.Endpoint()}},
		{"another cluster", etcd.SavedMembers{Configured: []string{dead}, Cluster: id + 1, Members: []string{server.Endpoint()}}, []string{dead}},
		{"another configuration", etcd.SavedMembers{Configured: []string{other}, Cluster: id, Members: []string{server.Endpoint()}}, []string{dead}},
		{"loopback", etcd.SavedMembers{Configured: []string{dead}, Cluster: id, Members: []string{"localhost:1"}}, []string{dead}},
	} {
		dir := t.TempDir()
		require.NoError(t, disk.WriteMembers(dir, c.saved))
		m, endpoints := newMembers(t, dir, dead)
		m.Update(t.Context())
		assert.Equal(t, c.want, endpoints(), "%s: endpoints", c.name)
	}
}

// If the file cannot be written, the next read of the member list writes it.
func TestMembers_SavedAfterAFailure(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	log, hook := test.NewNullLogger()
	saves := 0
	m := etcd.NewMembers(etcd.MembersOptions{
		Client: server.Client(t), Log: log,
		Save: func(etcd.SavedMembers) error {
			if saves++; saves < 3 {
				return errors.New("no space left on device")
			}
			return nil
		},
	})
	cluster := clusterOf(t, server.Endpoint())
	for range 4 { // the members do not change
		m.Try(t.Context(), cluster, server.Endpoint())
	}
	assert.Equal(t, 3, saves)
	failed := 0
	for _, e := range hook.AllEntries() {
		if e.Level == logrus.WarnLevel {
			failed++
			assert.Equal(t, "save etcd members: trying again at the next read", e.Message, "log")
		}
	}
	assert.Equal(t, 1, failed, "warnings about one failure")
}

// Another cluster at a configured address is used only once the known cluster has stopped.
func TestMembers_AnotherCluster(t *testing.T) {
	t.Parallel()
	host := etcdtest.OutsideAddress(t)
	ours, theirs := etcdtest.Start(t, etcdtest.WithHost(host)), etcdtest.StartCluster(t, 1).Members[0]
	configured, dir := theirs.Endpoint(), t.TempDir()
	theirs.Kill()
	require.NoError(t, disk.WriteMembers(dir, etcd.SavedMembers{Configured: []string{configured}, Cluster: clusterOf(t, ours.Endpoint()), Members: []string{ours.Endpoint()}}))
	m, endpoints := newMembers(t, dir, configured)
	m.Update(t.Context())
	require.Equal(t, []string{configured, ours.Endpoint()}, endpoints())
	theirs.Restart()
	for range 5 { // either cluster may answer the first one
		m.Update(t.Context())
	}
	assert.Equal(t, []string{ours.Endpoint()}, endpoints(), "endpoints with another cluster at %s", configured)
	assert.Equal(t, []string{configured}, m.Status().Departed)
	ours.Kill()
	for range 2 {
		m.Update(t.Context())
	}
	assert.Equal(t, []string{configured}, endpoints(), "endpoints after the known cluster has ended")
	s, err := disk.ReadMembers(dir)
	assert.True(t, err == nil && len(s.Members) == 0 && s.Cluster == clusterOf(t, configured), "saved: %+v, %v", s, err)
}

// An endpoint that does not answer may be another name of a member: it is not reported as removed.
func TestMembers_SilentEndpoint(t *testing.T) {
	t.Parallel()
	silent := testkit.FreePort(t)
	cli := members.Dial(t, etcdtest.Start(t).Endpoint(), silent)
	log, hook := test.NewNullLogger()
	m := etcd.NewMembers(etcd.MembersOptions{Client: cli, Log: log})
	m.Start()
	m.Update(t.Context())
	assert.Equal(t, []string{silent}, m.Status().Departed)
	if e := hook.LastEntry(); e == nil || e.Data["endpoint"] != silent || e.Message != "configured etcd endpoint is not a member of the cluster, or does not answer: update --etcd-endpoints if the member was replaced" {
		t.Errorf("log: %+v", e)
	}
}

// etcd's gRPC proxy lists itself as the only member, of no cluster: it is not reported as removed.
func TestMembers_GRPCProxy(t *testing.T) {
	t.Parallel()
	program, err := etcdtest.Program()
	require.NoError(t, err)
	f, err := fleet.New(fleet.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	address := testkit.FreePort(t)
	cli := members.Dial(t, address)
	p, err := f.Start(t.Context(), fleet.Spec{
		Name: "grpc-proxy", Program: program,
		Args: []string{"grpc-proxy", "start", "--endpoints", etcdtest.Start(t).Endpoint(), "--listen-addr", address, "--data-dir", t.TempDir()},
		Ready: func(ctx context.Context) error {
			_, err := etcd.Ping(ctx, cli, members.Layout(t))
			return err
		},
	})
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Kill()) }()
	log, hook := test.NewNullLogger()
	m := etcd.NewMembers(etcd.MembersOptions{Client: cli, Log: log})
	m.Start()
	m.Update(t.Context())
	assert.Empty(t, m.Status())
	assert.Empty(t, hook.AllEntries())
}

// A member is used over TLS only if its certificate is valid for the host of its address.
func TestMembers_TLSName(t *testing.T) {
	t.Parallel()
	ca := testkit.NewAuthority(t, "ca")
	cert, key := ca.Issue("etcd", testkit.Certificate{Hosts: []string{"127.0.0.1"}})
	server := etcdtest.Start(t, etcdtest.WithTLS(cert, key, ""))
	_, port, err := net.SplitHostPort(server.Endpoint())
	require.NoError(t, err)
	config := func() *tls.Config { return &tls.Config{RootCAs: ca.Pool()} }
	cli := members.DialWith(t, etcd.Config{Endpoints: []string{testkit.FreePort(t)}, TLS: config})
	direct := members.DialWith(t, etcd.Config{Endpoints: []string{server.Endpoint()}, TLS: config})
	resp, err := direct.Get(t.Context(), "/any")
	require.NoError(t, err)
	m := etcd.NewMembers(etcd.MembersOptions{Client: cli})
	m.Try(t.Context(), resp.Header.ClusterId, server.Endpoint(), net.JoinHostPort("localhost", port))
	assert.Equal(t, []string{server.Endpoint()}, m.Status().Added)
}
