package embedetcd_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestPortTakenByEtcd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		keys map[string]string
		want error
		says string
	}{
		{"empty", nil, embedetcd.ErrJoin, ""},
		{"ours", map[string]string{"/pd/meta/schema": `{"v":1}`, "/pd/prefill/10.0.0.1:1": ""}, embedetcd.ErrJoin, ""},
		{"ours without a schema", map[string]string{"/pd/prefill/10.0.0.1:1": ""}, embedetcd.ErrJoin, ""},
		{"others elsewhere", map[string]string{"mooncake/ram/x": "y", "/registry/pods": "z"}, embedetcd.ErrJoin, ""},
		{"newer schema", map[string]string{"/pd/meta/schema": `{"v":2}`}, embedetcd.ErrPortTaken, "version 2"},
		{"foreign schema", map[string]string{"/pd/meta/schema": `tikv`}, embedetcd.ErrPortTaken, "--etcd-prefix"},
		{"foreign keys", map[string]string{"/pd/regions/1": "x"}, embedetcd.ErrPortTaken, "/pd/regions/1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.Start(t)
			cli := etcd.Client(t)
			for k, v := range c.keys {
				members.Put(t, cli, k, v)
			}
			s, err := embedetcd.Start(t.Context(), config(t, etcd.Endpoint()))
			if err == nil {
				s.Close()
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), etcd.Endpoint()) {
				t.Fatalf("error %v, want %v with %q", err, c.want, c.says)
			}
		})
	}
}

func TestPortTakenByEmbedded(t *testing.T) {
	t.Parallel()
	for _, gateway := range []bool{true, false} {
		cfg := config(t, "127.0.0.1:0")
		cfg.Gateway = gateway
		first := start(t, cfg)
		_, err := embedetcd.Start(t.Context(), config(t, first.Endpoint()))
		require.ErrorIs(t, err, embedetcd.ErrJoin, "gateway %t", gateway)
	}
}

func TestPortTakenByAnother(t *testing.T) {
	t.Parallel()
	t.Run("HTTP server", func(t *testing.T) {
		t.Parallel()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Server", "nginx")
			w.WriteHeader(http.StatusNotFound)
		}))
		defer srv.Close()
		wantTaken(t, srv.Listener.Addr().String(), "HTTP server", "nginx", "--etcd-listen")
	})
	t.Run("HTTPS server", func(t *testing.T) {
		t.Parallel()
		srv := httptest.NewTLSServer(http.NotFoundHandler())
		defer srv.Close()
		wantTaken(t, srv.Listener.Addr().String(), "TLS", "--etcd-endpoints https://")
	})
	t.Run("silent listener", func(t *testing.T) {
		t.Parallel()
		lis := testkit.Listen(t)
		wantTaken(t, lis.Addr().String(), "answers neither", "--etcd-listen")
	})
	t.Run("listener that hangs up", func(t *testing.T) {
		t.Parallel()
		lis := testkit.Listen(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := lis.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("SSH-2.0-x\r\n"))
				_ = c.Close()
			}
		})
		defer wg.Wait()
		defer lis.Close()
		wantTaken(t, lis.Addr().String(), "answers neither", "--etcd-listen")
	})
}

// A server occupies the port without answering and ends after a few seconds,
// like an etcd that is being stopped. Then Start can use the port.
func TestPortFreeAgain(t *testing.T) {
	t.Parallel()
	lis := testkit.Listen(t)
	end := time.AfterFunc(6*time.Second, func() { _ = lis.Close() })
	defer end.Stop()
	s := start(t, config(t, lis.Addr().String()))
	assert.Equal(t, lis.Addr().String(), s.Endpoint(), "address")
}

func wantTaken(t *testing.T, address string, says ...string) {
	t.Helper()
	s, err := embedetcd.Start(t.Context(), config(t, address))
	if err == nil {
		s.Close()
	}
	require.ErrorIs(t, err, embedetcd.ErrPortTaken, "error")
	testkit.Contains(t, fmt.Sprint(err), append(says, address)...)
}

// Of several proxies that start at the same moment, one hosts etcd and the others join.
func TestStartRace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		dir  bool // one data directory for all
	}{{"own directories", false}, {"one directory", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			listen := testkit.FreePort(t)
			shared := config(t, listen)
			const n = 4
			errs := make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				cfg := shared
				if !c.dir {
					cfg = config(t, listen)
				}
				wg.Go(func() {
					s, err := embedetcd.Start(t.Context(), cfg)
					if err == nil {
						t.Cleanup(s.Close)
					}
					errs[i] = err
				})
			}
			wg.Wait()
			hosts := 0
			for _, err := range errs {
				switch {
				case err == nil:
					hosts++
				case !errors.Is(err, embedetcd.ErrJoin):
					t.Errorf("%v", err)
				}
			}
			assert.Equal(t, 1, hosts)
		})
	}
}

func TestDataDirLocked(t *testing.T) {
	t.Parallel()
	cfg := config(t, testkit.FreePort(t))
	start(t, cfg)
	other := cfg
	other.ListenClient = testkit.FreePort(t)
	_, err := embedetcd.Start(t.Context(), other)
	require.True(t, errors.Is(err, embedetcd.ErrLocked) && strings.Contains(err.Error(), "--etcd-data-dir"), "%v", err)
}

func TestRefusesBadConfig(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"0.0.0.0:2379", "10.0.0.1:2379", "[::]:2379", "example.org:2379", "2379", ":2379", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"} {
		_, err := embedetcd.Start(t.Context(), config(t, listen))
		assert.ErrorIs(t, err, embedetcd.ErrListen, listen)
	}
	cfg := config(t, "127.0.0.1:0")
	cfg.Prefix = "/"
	_, err := embedetcd.Start(t.Context(), cfg)
	assert.ErrorIs(t, err, schema.ErrPrefix, "prefix")
	cfg = config(t, "127.0.0.1:0")
	cfg.DataDir = filepath.Join(t.TempDir(), "file")
	testkit.WriteFile(t, cfg.DataDir, "")
	_, err = embedetcd.Start(t.Context(), cfg)
	assert.Error(t, err, "a file was taken for a data directory")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = embedetcd.Start(ctx, config(t, "127.0.0.1:0"))
	assert.ErrorIs(t, err, context.Canceled, "a cancelled context")
}
