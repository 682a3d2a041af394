package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// The bound is that of the handler, which counts.
func TestBodiesMemoryIsInForce(t *testing.T) {
	t.Parallel()
	address := testkit.FreePort(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	startProxy(t, nil, "--port", port, "--host", "127.0.0.1", "--etcd-endpoints", testkit.StartEtcd(t).Endpoint(), "--max-bodies-memory", "5MiB")
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
