package lmcache_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// The bytes equal msgspec 0.19's encoding of PDMsgBase's notification,
// and of its other messages, which a proxy does not get.
func TestParseNotification(t *testing.T) {
	t.Parallel()
	const of7 = "\x82\xa4type\xaaProxyNotif\xa6req_id\xa17"
	id, err := lmcache.ParseNotification([]byte(of7))
	assert.True(t, id == "7" && err == nil, "%q, %v", id, err)
	assert.Equal(t, of7, string(connector.Notification("7")))
	id, err = lmcache.ParseNotification([]byte("\x83\xa3new\x01\xa6req_id\xa17\xa4type\xaaProxyNotif"))
	assert.True(t, id == "7" && err == nil, "with a member that is not known: %q, %v", id, err)
	for _, bad := range []string{
		"", "\x80", "\xc0", "hello", of7[:20], "\x82\xa4type\xaaProxyNotif\xa6req_id\xa0", "\x81\xa4type\xaaProxyNotif",
		"\x82\xa4type\xabCancelNotif\xa6req_id\xa17", "\x82\xa4type\xaaProxyNotif\xa6req_id\x07", "\xdf\xff\xff\xff\xff",
		"\x82\xa4type\xaaProxyNotif\xa6req_id\xda\x02\x00" + string(bytes.Repeat([]byte("x"), 512)),
	} {
		id, err := lmcache.ParseNotification([]byte(bad))
		assert.ErrorIs(t, err, lmcache.ErrMessage, "%q: %q", bad, id)
	}
}

// Await ends exactly with the last rank, whatever the duplicates,
// and whether it starts before or after the notifications.
func TestInboxCountsRanks(t *testing.T) {
	t.Parallel()
	for _, early := range []int{0, 3, 8} {
		synctest.Test(t, func(t *testing.T) {
			b := lmcache.NewInbox()
			add := func(rank int) { b.Add("id", "rank "+strconv.Itoa(rank)) }
			for rank := range early {
				add(rank)
			}
			over := make(chan error, 1)
			go func() { over <- b.Await(t.Context(), "id", 8) }()
			for rank := early; rank < 8; rank++ {
				add(max(rank-1, 0) % 7) // a known rank, or the first one
				b.Add("another id", "rank 7")
				synctest.Wait()
				select {
				case <-over:
					t.Fatalf("over after %d of 8", rank)
				default:
				}
				add(rank)
			}
			assert.NoError(t, <-over)
			b.Add("id", "rank 1") // late, and ignored
			assert.False(t, early < 8 && b.Len() != 2, "%d ids are kept", b.Len())
		})
	}
}

// Notifications that no proxy waits for expire; others are kept.
func TestInbox_Expires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := lmcache.NewInbox()
		over := make(chan error, 1)
		go func() { over <- b.Await(t.Context(), "wanted", 1) }()
		synctest.Wait()
		for i := range 1 << 17 {
			b.Add("id "+strconv.Itoa(i), "a")
		}
		n := b.Len()
		assert.LessOrEqual(t, n, 1<<16+1, "%d ids are kept", n)
		b.Add("wanted", "a")
		assert.NoError(t, <-over)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.ErrorIs(t, b.Await(ctx, "other", 1), context.Canceled)
	})
}

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

// bridge is an agent: a PULL socket and the route that proxies query.
func bridge(t *testing.T) (*lmcache.Receiver, *lmcache.Inbox, *httptest.Server, *instance.Instance) {
	t.Helper()
	inbox := lmcache.NewInbox()
	r, err := lmcache.Listen(t.Context(), "tcp://127.0.0.1:0", inbox, quiet())
	require.NoError(t, err)
	t.Cleanup(r.Close)
	s := httptest.NewServer(lmcache.Handler(inbox))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	port, _ := strconv.Atoi(u.Port())
	return r, inbox, s, &instance.Instance{
		Key:    instance.Key{Role: instance.Prefill, Address: "127.0.0.1:8100"},
		Record: instance.Record{Ports: map[string][]int{instance.PortLMCacheNotify: {port}}},
	}
}

func asker(t *testing.T) *lmcache.Waiter {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &lmcache.Waiter{HTTP: &http.Client{Transport: transport}}
}

// A load balancer that checks the port each second does not fill the log.
func TestReceiver_LogsFewRefusedPeers(t *testing.T) {
	t.Parallel()
	log, hook := logtest.NewNullLogger()
	r, err := lmcache.Listen(t.Context(), "tcp://127.0.0.1:0", lmcache.NewInbox(), log)
	require.NoError(t, err)
	for range 20 {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.Addr().String())
		require.NoError(t, err)
		_, err = c.Write([]byte("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: a health check of a load balancer\r\n\r\n"))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, c) // until the receiver closes it
		_ = c.Close()
	}
	testkit.EventuallyTrue(t, 10*time.Second, func() bool { return len(hook.AllEntries()) != 0 }, "nothing is logged")
	r.Close()
	if n := len(hook.AllEntries()); n > 3 { // a line each 10 s
		t.Errorf("%d lines were logged of 20 peers", n)
	}
}

// The real libzmq pushes messages like those of LMCache's type,
// from two connections as for two ranks, and one of them twice.
func TestRealLibzmq(t *testing.T) {
	t.Parallel()
	python := testkit.PythonWithZMQ(t)
	r, _, _, in := bridge(t)
	a := asker(t)
	over := make(chan error, 1)
	go func() { over <- a.Await(t.Context(), in, "7", 2) }()
	p := testkit.StartPython(t, python, filepath.Join("testdata", "rank.py"), "tcp://"+r.Addr().String(), "7")
	assert.NoError(t, <-over)
	p.End()
}

// With two proxies and one prefill instance, each proxy gets exactly its
// notifications, although the prefill instance sends all of them to one address.
func TestTwoProxiesOnePrefill(t *testing.T) {
	t.Parallel()
	r, inbox, _, in := bridge(t)
	ranks := []*rank{newRank(t, r), newRank(t, r)}
	const requests = 50
	over := make(chan error, 2*requests)
	for proxy := range 2 {
		a := asker(t)
		for n := range requests {
			id := fmt.Sprintf("%d-%d", proxy, n)
			go func() { over <- a.Await(t.Context(), in, id, len(ranks)) }()
			for _, s := range ranks {
				s.notify(id)
			}
		}
	}
	for range 2 * requests {
		assert.NoError(t, <-over)
	}
	assert.Equal(t, 0, inbox.Len(), "ids are left over")
}

// An agent waits as long as the proxy does: prefill may have a long queue.
func TestLongPrefill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inbox := lmcache.NewInbox()
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, lmcache.Path+"?req_id=7&ranks=1", nil)
		over := make(chan any, 1)
		go func() {
			defer func() { over <- recover() }()
			lmcache.Handler(inbox).ServeHTTP(w, r)
		}()
		time.Sleep(29 * time.Minute)
		inbox.Add("7", "a rank")
		broken := <-over
		assert.True(t, broken == nil && w.Body.String() == "notified", "%v %q", broken, w.Body)
	})
}

// An agent that ends, one that refuses and one that is unreachable cause an error at once.
func TestLostAgent(t *testing.T) {
	t.Parallel()
	_, inbox, s, in := bridge(t)
	a := asker(t)
	assert.NoError(t, a.CannotReceive(in))
	assert.ErrorIs(t, a.Await(t.Context(), in, "", 1), lmcache.ErrLost, "a bad question")
	over := make(chan error, 1)
	go func() { over <- a.Await(t.Context(), in, "7", 1) }()
	for inbox.Len() == 0 { // until the agent has received the query
		runtime.Gosched()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, a.Await(ctx, in, "8", 1), context.Canceled, "canceled")
	s.CloseClientConnections()
	assert.ErrorIs(t, <-over, lmcache.ErrLost, "the agent closed the connection")
	s.Close()
	assert.ErrorIs(t, a.Await(t.Context(), in, "7", 1), lmcache.ErrLost, "no agent")
	in.Record.Ports = nil
	assert.ErrorIs(t, a.CannotReceive(in), lmcache.ErrNoReceiver, "no receiver")
}
