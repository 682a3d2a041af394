package testkit_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

func TestEtcd(t *testing.T) {
	t.Parallel()
	p := testkit.StartEtcd(t)
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
	if p.Endpoint() != address {
		t.Fatalf("the endpoint moved from %s to %s", address, p.Endpoint())
	}
}

func TestEtcd_RestartKeepsTLS(t *testing.T) {
	t.Parallel()
	ca := testkit.NewAuthority(t, "ca")
	cert, key := ca.Issue("etcd", testkit.Certificate{Hosts: []string{"127.0.0.1"}})
	e := testkit.StartEtcd(t, testkit.WithTLS(cert, key, ""))
	e.Restart()
	c, err := (&tls.Dialer{Config: &tls.Config{RootCAs: ca.Pool()}}).DialContext(t.Context(), "tcp", e.Endpoint())
	require.NoError(t, err)
	_ = c.Close()
}
