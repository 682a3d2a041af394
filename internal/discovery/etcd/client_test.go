package etcd_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// Who follows a watch has nothing to say: an answer to each event costs etcd
// and every proxy as much as the event itself.
func TestEventsAreNotAnswered(t *testing.T) {
	t.Parallel()
	server := testkit.StartEtcd(t)
	link := testkit.StartLink(t, strings.TrimPrefix(server.Endpoint(), "http://"))
	cli, err := etcd.Dial(etcd.Config{Endpoints: []string{link.Address()}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cli.Close() })
	events := cli.Watch(t.Context(), "/watched", clientv3.WithCreatedNotify())
	next := func(what string) {
		t.Helper()
		select {
		case resp, ok := <-events:
			if !ok || resp.Err() != nil {
				t.Fatalf("%s: %v, %v", what, ok, resp.Err())
			}
		case <-time.After(members.Soon):
			t.Fatalf("%s: nothing has come", what)
		}
	}
	next("creation")
	writer := server.Client(t)
	write := func(i int) {
		members.Put(t, writer, "/watched", fmt.Sprint(i))
		next(fmt.Sprintf("event %d", i))
	}
	write(0)
	before := link.Passed(testkit.ToServer)
	const many = 200
	for i := range many {
		write(i + 1)
	}
	// A frame of HTTP/2 is 13 bytes at least. The pings that find a hung member
	// go on, one in ten seconds.
	if sent := link.Passed(testkit.ToServer) - before; sent >= 13*many/4 {
		t.Errorf("%d bytes were sent for %d events", sent, many)
	}
}

// A client with a user logs in, and logs in again after its token has become invalid. A watch can
// begin although the token of an older watch, which goes on, is no longer valid.
func TestUser(t *testing.T) {
	t.Parallel()
	const user, password = "pd", "secret"
	server := testkit.StartEtcd(t)
	root := testkit.EnableAuth(t, server.Client(t), user, password, "/watched")
	cli, err := etcd.Dial(etcd.Config{Endpoints: []string{server.Endpoint()}, Username: user, Password: password})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cli.Close() })
	use := func(when string) {
		t.Helper()
		ctx, stop := etcd.WatchContext(t.Context())
		t.Cleanup(stop)
		select {
		case resp, ok := <-cli.Watch(ctx, "/watched", clientv3.WithCreatedNotify()):
			if !ok || resp.Err() != nil || !resp.Created {
				t.Fatalf("watch %s the change: %v, %v", when, ok, resp.Err())
			}
		case <-time.After(members.Soon):
			t.Fatalf("watch %s the change: no answer", when)
		}
		ctx, stop = context.WithTimeout(t.Context(), members.Soon)
		defer stop()
		if _, err := cli.Get(ctx, "/watched"); err != nil {
			t.Fatalf("get %s the change: %v", when, err)
		}
	}
	use("before")
	if _, err := root.UserChangePassword(t.Context(), user, password); err != nil {
		t.Fatal(err)
	}
	use("after")
}
