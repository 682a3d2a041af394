package etcd_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// A client of a watch sends nothing per event: a response would
// cost etcd and every proxy as much as the event itself.
func TestWatch_SendsNoReplies(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	link := testkit.StartLink(t, strings.TrimPrefix(server.Endpoint(), "http://"))
	cli := members.Dial(t, link.Address())
	events := cli.Watch(t.Context(), "/watched", clientv3.WithCreatedNotify())
	next := func(what string) {
		t.Helper()
		select {
		case resp, ok := <-events:
			require.True(t, ok, what)
			require.NoError(t, resp.Err(), what)
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
	// The smallest relevant HTTP/2 frame has 13 bytes. The pings that
	// detect a hung member continue, one every ten seconds.
	sent := link.Passed(testkit.ToServer) - before
	assert.True(t, sent < 13*many/4, "%d bytes were sent for %d events", sent, many)
}

// An HTTP proxy of the environment is not used: on machines that need one for the internet, it rarely reaches etcd.
func TestDial_NoHTTPProxy(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t, etcdtest.WithHost(etcdtest.OutsideAddress(t)))
	_, err := etcd.Ping(t.Context(), members.Dial(t, server.Endpoint()), members.Layout(t))
	require.NoError(t, err)
}

// A client with a user logs in, and logs in again once its token is invalid. A new
// watch works although the token of an older watch, which continues, is invalid.
func TestUser(t *testing.T) {
	t.Parallel()
	const user, password = "pd", "secret"
	server := etcdtest.Start(t)
	root := etcdtest.EnableAuth(t, server.Client(t), user, password, "/watched")
	cli := members.DialWith(t, etcd.Config{Endpoints: []string{server.Endpoint()}, Username: user, Password: password})
	use := func(when string) {
		t.Helper()
		ctx, stop := etcd.WatchContext(t.Context())
		t.Cleanup(stop)
		select {
		case resp, ok := <-cli.Watch(ctx, "/watched", clientv3.WithCreatedNotify()):
			require.True(t, ok && resp.Err() == nil && resp.Created,
				"watch %s the change: %v, %v", when, ok, resp.Err())
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
	_, err := root.UserChangePassword(t.Context(), user, password)
	require.NoError(t, err)
	use("after")
}

// While etcd is unreachable, a client with a user dials it no
// more often than one without, and logs the reason once.
func TestUser_Unreachable(t *testing.T) {
	t.Parallel()
	known, strangers := testkit.NewAuthority(t, "known"), testkit.NewAuthority(t, "strangers")
	strangers.Issue("etcd", testkit.Certificate{Hosts: []string{"127.0.0.1"}})
	untrusted := func(nc net.Conn) {
		_ = tls.Server(nc, &tls.Config{Certificates: []tls.Certificate{strangers.Pair("etcd")}, NextProtos: []string{"h2"}}).HandshakeContext(t.Context())
	}
	trusting := func() *tls.Config { return &tls.Config{RootCAs: known.Pool(), MinVersion: tls.VersionTLS12} }
	dials := func(cfg etcd.Config, answer func(net.Conn)) *atomic.Int64 {
		ln, n := testkit.Listen(t), new(atomic.Int64)
		go func() {
			for nc, err := ln.Accept(); err == nil; nc, err = ln.Accept() {
				n.Add(1)
				answer(nc)
				_ = nc.Close()
			}
		}()
		cfg.Endpoints = []string{ln.Addr().String()}
		cli := members.DialWith(t, cfg)
		for range 4 {
			ctx, stop := etcd.WatchContext(t.Context())
			t.Cleanup(stop)
			go cli.Watch(ctx, "/watched") // returns once etcd has answered
		}
		_, err := cli.KeepAlive(t.Context(), 1)
		require.NoError(t, err)
		return n
	}
	for _, c := range []struct {
		name   string
		answer func(net.Conn)
		logged int
	}{
		{"closes", func(net.Conn) {}, 0},
		{"not trusted", untrusted, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			log, lines := test.NewNullLogger()
			with := dials(etcd.Config{TLS: trusting, Log: log, Username: "pd", Password: "secret"}, c.answer)
			without := dials(etcd.Config{TLS: trusting}, c.answer)
			const rounds = 6 // of gRPC's backoff
			testkit.EventuallyTrue(t, members.Soon, func() bool { return min(with.Load(), without.Load()) >= rounds }, "dials")
			a, b := with.Load(), without.Load()
			assert.LessOrEqual(t, a, 3*b, "%d dials with a user, %d without", a, b)
			logged := 0
			for _, e := range lines.AllEntries() {
				if e.Level <= logrus.ErrorLevel {
					logged++
				}
			}
			assert.Equal(t, c.logged, logged, "errors in the log")
		})
	}
}

// The error of a cluster without quorum names the unreachable members and those without a leader.
func TestPing_NoQuorum(t *testing.T) {
	t.Parallel()
	c := etcdtest.StartCluster(t, 3)
	cli, l := c.Client(t), members.Layout(t)
	c.Members[0].Kill()
	c.Members[1].Pause()
	killed, paused, left := c.Members[0].Endpoint(), c.Members[1].Endpoint(), c.Members[2].Endpoint()
	testkit.Eventually(t, members.Soon, func() error { // until the last member has noticed it
		_, err := etcd.Ping(t.Context(), cli, l)
		for _, text := range []string{killed + ": connect: connection refused", paused + " takes connections but does not answer", left + " has no leader"} {
			if !errors.Is(err, etcd.ErrUnreachable) || !strings.Contains(err.Error(), text) {
				return fmt.Errorf("%w, which lacks %s", err, text)
			}
		}
		return nil
	})
}
