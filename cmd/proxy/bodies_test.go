package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// The limit in the metric is the handler's, which is the one that applies.
func TestBodiesMemory_MetricMatchesLimit(t *testing.T) {
	t.Parallel()
	address := testkit.FreePort(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	startProxy(t, nil, "--port", port, "--host", "127.0.0.1", "--etcd-endpoints", etcdtest.Start(t).Endpoint(), "--max-bodies-memory", "5MiB")
	testkit.Eventually(t, time.Minute, func() error {
		resp, err := testkit.Ask(t.Context(), http.DefaultClient, http.MethodGet, "http://"+address+"/metrics", "")
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if want := "\npd_request_bodies_limit_bytes 5.24288e+06\n"; err != nil || !strings.Contains(string(text), want) {
			return fmt.Errorf("%q is not in\n%s, %v", want, text, err)
		}
		return nil
	})
}

// Heap profiles have samples even if only the configuration file sets pprof-listen.
func TestHeapProfile_SettingInFile(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(testkit.FreePort(t))
	require.NoError(t, err)
	profiles, file := testkit.FreePort(t), filepath.Join(t.TempDir(), "proxy.yaml")
	testkit.WriteFile(t, file, "pprof-listen: "+profiles+"\n")
	startProxy(t, nil, "--port", port, "--host", "127.0.0.1", "--etcd-endpoints", etcdtest.Start(t).Endpoint(), "--config", file)
	testkit.Eventually(t, time.Minute, func() error {
		resp, err := testkit.Ask(t.Context(), http.DefaultClient, http.MethodGet, "http://"+profiles+"/debug/pprof/heap?debug=1", "")
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		head, _, _ := strings.Cut(string(text), "\n")
		if want := "@ heap/1048576"; err != nil || !strings.HasSuffix(head, want) { // twice the sampling rate
			return fmt.Errorf("%q is not at the end of %q, %v", want, head, err)
		}
		return nil
	})
}
