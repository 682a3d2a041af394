package etcd_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
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

func TestMain(m *testing.M) {
	// Go reads these variables once, and uses no HTTP proxy for loopback.
	if err := cmp.Or(os.Setenv("HTTPS_PROXY", "http://127.0.0.1:1"), os.Unsetenv("NO_PROXY"), os.Unsetenv("no_proxy")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	leak.Main(m)
}

// The tests of this package describe the etcd that they run with. PD_TEST_ETCD
// names another etcd binary, PD_TEST_ETCD_VERSION the prefix of its version. A
// run for an old etcd thus cannot pass with a new one by mistake.
func TestEtcdVersion(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	s, err := etcd.Client(t).Status(t.Context(), etcd.Endpoint())
	require.NoError(t, err)
	t.Logf("these tests run against etcd %s", s.Version)
	want := os.Getenv("PD_TEST_ETCD_VERSION")
	assert.True(t, s.Version != "" && strings.HasPrefix(s.Version, want), "etcd %q, want %s...", s.Version, want)
}

// Sizes in HTTP/2 (RFC 9113): a PING frame (6.7), and the bytes that a gRPC client sends on a new connection:
// the preface (3.4), SETTINGS with one parameter (6.5), WINDOW_UPDATE (6.9) and the SETTINGS acknowledgement.
const (
	pingSize  = 17
	setupSize = 24 + 15 + 13 + 9
)

// The connection of a watch is pinged to detect a hung member. A connection
// without a call is not pinged: etcd closes it after three such pings
// ("too_many_pings"), and gRPC then doubles the ping interval of the client.
func TestIdleConnection_NotPinged(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	server := etcdtest.Start(t)
	address := strings.TrimPrefix(server.Endpoint(), "http://")
	links := [2]*testkit.Link{testkit.StartLink(t, address), testkit.StartLink(t, address)}
	cli := members.Dial(t, links[0].Address(), links[1].Address())
	events := cli.Watch(t.Context(), "/watched", clientv3.WithCreatedNotify())
	resp := <-events
	require.NoError(t, resp.Err(), resp.Err())
	sent := func(i int) int64 { return links[i].Passed(testkit.ToServer) }
	testkit.EventuallyTrue(t, members.Soon, func() bool { return min(sent(0), sent(1)) >= setupSize }, "both connections are ready")
	used, idle := 0, 1 // the connection of the watch has sent more
	if sent(1) > sent(0) {
		used, idle = 1, 0
	}
	before := sent(idle)
	// After the first bytes, each connection carries only one ping per 10 s,
	// so two pings of one connection take longer than one of the other.
	for range 3 {
		now := sent(used)
		testkit.EventuallyTrue(t, time.Minute, func() bool { return sent(used) != now }, "no ping")
	}
	n := sent(idle) - before
	assert.True(t, n < pingSize, "the idle connection has sent %d bytes", n)
}

// described counts its calls of String.
type described struct{ times int }

func (d *described) String() string { d.times++; return "described" }

// TestZapLogger_LevelCheckedFirst proves that no entry is formatted for a
// disabled level, and checks the level of each written entry.
func TestZapLogger_LevelCheckedFirst(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		level logrus.Level
		limit zapcore.Level
		want  []logrus.Level // for a debug, info, warning and error entry
	}{
		{"information", logrus.InfoLevel, zapcore.WarnLevel, []logrus.Level{logrus.WarnLevel, logrus.WarnLevel}},
		{"all", logrus.DebugLevel, zapcore.ErrorLevel, []logrus.Level{logrus.DebugLevel, logrus.DebugLevel, logrus.WarnLevel, logrus.ErrorLevel}},
		{"nothing above debugging", logrus.InfoLevel, zapcore.DebugLevel, nil},
		{"all, as debugging", logrus.DebugLevel, zapcore.DebugLevel, []logrus.Level{logrus.DebugLevel, logrus.DebugLevel, logrus.DebugLevel, logrus.DebugLevel}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			log, hook := test.NewNullLogger()
			log.SetLevel(tt.level)
			var d described
			zl := etcd.ZapLogger(log.WithField("part", "etcd"), tt.limit).With(zap.String("with", "more"))
			for _, l := range []zapcore.Level{zapcore.DebugLevel, zapcore.InfoLevel, zapcore.WarnLevel, zapcore.ErrorLevel} {
				zl.Log(l, "said", zap.Stringer("what", &d))
			}
			assert.Equal(t, len(tt.want), d.times, "entries put together")
			entries := hook.AllEntries()
			require.Equal(t, len(tt.want), len(entries))
			for i, e := range entries {
				if e.Level != tt.want[i] || e.Message != "said" || e.Data["what"] != "described" || e.Data["part"] != "etcd" || e.Data["with"] != "more" {
					t.Errorf("entry %d: %s %q %v, want %s", i, e.Level, e.Message, e.Data, tt.want[i])
				}
			}
		})
	}
}
