package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// countingServer is a server that answers with its name, and counts its connections.
type countingServer struct {
	*httptest.Server
	instance.Key
	conns atomic.Int64
}

func startCounting(t *testing.T, name string, start func(*httptest.Server)) *countingServer {
	t.Helper()
	s := &countingServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
	s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		s.conns.Add(1)
		return ctx
	}
	start(s.Server)
	t.Cleanup(s.Server.Close)
	s.Key = instance.Key{Role: instance.Decode, Address: s.Listener.Addr().String()}
	return s
}

// incarnation returns an instance at the server's address.
func (s *countingServer) incarnation(id string) *instance.Instance {
	return &instance.Instance{Key: s.Key, Record: instance.Record{ID: id}}
}

// ask sends a request and returns the answer.
func ask(t *testing.T, p *Pool, in *instance.Instance) string {
	t.Helper()
	resp, err := p.Do(t.Context(), &Request{Instance: in, Method: http.MethodPost, Path: "/", Header: http.Header{}})
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(b)
}

// ageIdle makes all idle connections expire.
func (p *Pool) ageIdle() { p.started = p.started.Add(-2 * p.opts.IdleTimeout) }

// A connection is reused for the same incarnation of an instance, until Forget is called or it is too old.
func TestPool_ReusePerIncarnation(t *testing.T) {
	t.Parallel()
	s := startCounting(t, "a", (*httptest.Server).Start)
	p := NewPool(Options{IdleTimeout: time.Hour}.Patient())
	defer p.Close()
	first, second := s.incarnation("1"), s.incarnation("2")
	for _, step := range []struct {
		name   string
		before func()
		in     *instance.Instance
		conns  int64
	}{
		{"at first", nil, first, 1},
		{"again", nil, first, 1},
		{"another entry of the same life", nil, s.incarnation("1"), 1},
		{"another life", nil, second, 2},
		{"again", nil, second, 2},
		{"a late request of the life before", nil, first, 3},
		{"another life again", nil, second, 4},
		{"after Forget", func() { p.Forget(s.Address) }, second, 5},
		{"after it was swept away", func() { p.ageIdle(); p.sweep() }, second, 6},
		{"after Forget, again", func() { p.Forget(s.Address) }, second, 7},
		{"swept away again", func() { p.ageIdle(); p.sweep() }, second, 8},
		{"again", nil, second, 8},
		{"after Forget, once more", func() { p.Forget(s.Address) }, second, 9},
	} {
		if step.before != nil {
			step.before()
		}
		require.Equal(t, "a", ask(t, p, step.in), step.name)
		require.Equal(t, step.conns, s.conns.Load(), "%s: connections so far", step.name)
		require.True(t, len(p.hosts) == 1 && len(p.hosts[s.Key].idle) == 1 && p.hosts[s.Key].active == 0,
			"%s: %d hosts, %+v", step.name, len(p.hosts), p.hosts[s.Key])
	}
}

// A request goes only to its instance's address, and over TLS only if the instance has
// scheme https.
func TestPool_OnlyToInstanceAddress(t *testing.T) {
	t.Parallel()
	a, b := startCounting(t, "a", (*httptest.Server).Start), startCounting(t, "b", (*httptest.Server).Start)
	secret := startCounting(t, "secret", (*httptest.Server).StartTLS)
	trusting := secret.Client().Transport.(*http.Transport).TLSClientConfig
	p := NewPool(Options{TLS: func() *tls.Config { return trusting }}.Patient())
	defer p.Close()
	overTLS := secret.incarnation("1")
	overTLS.Record.Scheme = "https"
	otherRole := b.incarnation("1")
	otherRole.Role = instance.Prefill
	for _, step := range []struct {
		in   *instance.Instance
		want string
	}{
		{a.incarnation("1"), "a"},
		{b.incarnation("1"), "b"},
		{otherRole, "b"},
		{a.incarnation("1"), "a"},
		{overTLS, "secret"},
		{b.incarnation("1"), "b"},
		{overTLS, "secret"},
	} {
		r := &Request{Instance: step.in}
		assert.Equal(t, step.want, ask(t, p, step.in), "answered to %+v", step.in.Key)
		assert.Equal(t, step.in != overTLS, p.ReleasesBody(r), "%+v: plain", step.in.Key)
	}
	// An instance at the same address may come back with another scheme.
	today := *overTLS
	today.Record.Scheme = ""
	for _, in := range []*instance.Instance{&today, overTLS} {
		h, _ := p.activeHost(in)
		h.mu.Lock()
		h.active--
		h.mu.Unlock()
		assert.Equal(t, "secret", ask(t, p, overTLS))
	}
}

// Forget also closes idle TLS connections, and later those whose response is still being read.
func TestForget_HTTPS(t *testing.T) {
	t.Parallel()
	s := startCounting(t, "a", (*httptest.Server).StartTLS)
	trusting := s.Client().Transport.(*http.Transport).TLSClientConfig
	p := NewPool(Options{IdleTimeout: time.Hour, TLS: func() *tls.Config { return trusting }}.Patient())
	defer p.Close()
	in := s.incarnation("1")
	in.Record.Scheme = "https"
	begin := func() *Response {
		t.Helper()
		resp, err := p.Do(t.Context(), &Request{Instance: in, Method: http.MethodPost, Path: "/", Header: http.Header{}})
		require.NoError(t, err)
		return resp
	}
	end := func(resp *Response) {
		t.Helper()
		_, err := io.Copy(io.Discard, resp.Body)
		require.NoError(t, errors.Join(err, resp.Body.Close()))
	}
	end(begin())
	end(begin())
	p.Forget(s.Address)
	running := begin()
	assert.EqualValues(t, 2, s.conns.Load(), "connections, want one before Forget and one after it")
	p.Forget(s.Address)
	end(begin())
	end(running)
	first, second := begin(), begin() // only one connection has been made since
	end(first)
	end(second)
	assert.EqualValues(t, 4, s.conns.Load(),
		"connections, want 4: a response that began before Forget has kept its connection")
}
