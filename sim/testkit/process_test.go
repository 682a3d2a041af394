package testkit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestEtcdProcess(t *testing.T) {
	t.Parallel()
	p := testkit.StartEtcdProcess(t)
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
