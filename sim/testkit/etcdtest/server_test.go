package etcdtest_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const soon = time.Minute

func TestServer(t *testing.T) {
	t.Parallel()
	p := etcdtest.Start(t)
	cli := p.Client(t)
	get := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		resp, err := cli.Get(ctx, "/k")
		if err != nil || len(resp.Kvs) == 0 {
			return "", err
		}
		return string(resp.Kvs[0].Value), nil
	}
	want := func(value string) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			if got, err := get(); err != nil || got != value {
				return fmt.Errorf("%q, %v", got, err)
			}
			return nil
		})
	}
	if _, err := cli.Put(t.Context(), "/k", "v"); err != nil {
		t.Fatal(err)
	}
	p.Pause()
	if _, err := get(); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a paused etcd answered: %v", err)
	}
	p.Resume()
	want("v")
	address := p.Endpoint()
	p.Kill()
	if _, err := get(); err == nil {
		t.Fatal("a dead etcd answered")
	}
	p.Restart()
	want("v")
	p.Wipe()
	p.Restart()
	want("")
	require.Equal(t, address, p.Endpoint(), "the endpoint moved from %s to %s", address, p.Endpoint())
}

func TestServer_RestartKeepsTLS(t *testing.T) {
	t.Parallel()
	ca := testkit.NewAuthority(t, "ca")
	cert, key := ca.Issue("etcd", testkit.Certificate{Hosts: []string{"127.0.0.1"}})
	e := etcdtest.Start(t, etcdtest.WithTLS(cert, key, ""))
	e.Restart()
	c, err := (&tls.Dialer{Config: &tls.Config{RootCAs: ca.Pool()}}).DialContext(t.Context(), "tcp", e.Endpoint())
	require.NoError(t, err)
	_ = c.Close()
}

func TestCluster_LeaderKilled(t *testing.T) {
	t.Parallel()
	c := etcdtest.StartCluster(t, 3)
	leader := c.Leader()
	cli := etcdtest.Client(t, c.Others(leader)[0].Endpoint(), c.Others(leader)[1].Endpoint())
	put := func(v string) {
		t.Helper()
		testkit.Eventually(t, soon, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			_, err := cli.Put(ctx, "k", v)
			return err
		})
	}
	put("before")
	leader.Kill()
	put("after")
	leader.Restart()
	leader.Pause()
	put("paused")
	leader.Resume()
	assert.True(t, c.Leader() != nil && c.Follower() != c.Leader(), "no leader, or a follower that leads")
	got, err := cli.Get(t.Context(), "k")
	require.NoError(t, err)
	// A deletion would begin with version 1 again.
	assert.True(t, len(got.Kvs) == 1 && string(got.Kvs[0].Value) == "paused" && got.Kvs[0].Version >= 3, "%+v", got.Kvs)
}

func TestNoSpaceAndAuth(t *testing.T) {
	t.Parallel()
	p := etcdtest.Start(t, etcdtest.WithQuota(4<<20))
	cli := p.Client(t)
	etcdtest.FillUp(t, cli)
	if _, err := cli.Grant(t.Context(), 10); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Fatalf("grant: %v", err)
	}
	etcdtest.MakeRoom(t, cli)
	if _, err := cli.Put(t.Context(), "/pd/x", "y"); err != nil {
		t.Fatal(err)
	}
	root := etcdtest.EnableAuth(t, cli, "proxy", "secret", "/pd/")
	if _, err := cli.Put(t.Context(), "/pd/x", "z"); err == nil {
		t.Fatal("a client without a login may write")
	}
	if _, err := root.Put(t.Context(), "other", "z"); err != nil {
		t.Fatal(err)
	}
	if _, err := root.AuthDisable(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A restarted etcd starts although its address is taken for a moment.
func TestServer_WaitsForItsAddress(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t)
	e.Kill()
	l, err := net.Listen("tcp", e.Endpoint())
	require.NoError(t, err)
	time.AfterFunc(100*time.Millisecond, func() { _ = l.Close() })
	e.Restart()
	if _, err := e.Client(t).Get(t.Context(), "x"); err != nil {
		t.Error(err)
	}
}
