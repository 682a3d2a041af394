package e2e_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/test/harness"
)

// A proxy accepts connections before its instances have answered a probe. The first requests wait for these
// answers and are not refused.
func TestFirstRequestsWait(t *testing.T) {
	t.Parallel()
	probed := make(chan struct{})
	answer := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case probed <- struct{}{}:
		default:
		}
		<-answer
		fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
	})
	mux.HandleFunc("/v1/completions", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, `{"error":{"message":"the engine was reached"}}`)
	})
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	engine := httptest.NewServer(mux)
	defer engine.Close()

	address := bareProxy(t, func(string) []string { return []string{"--decode", strings.TrimPrefix(engine.URL, "http://")} })
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	got := make(chan string, 1)
	go func() {
		resp, _, err := harness.Send(ctx, http.MethodPost, "http://"+address+"/v1/completions", `{"model":"m","prompt":"x"}`)
		if err != nil {
			got <- err.Error()
			return
		}
		got <- resp.Status
	}()
	select {
	case <-probed: // the proxy knows the instance and waits for the answer to its probe
	case <-time.After(soon):
		t.Fatal("the proxy does not probe its instance")
	}
	select {
	case status := <-got:
		close(answer)
		t.Fatalf("answered before the instance was known: %s", status)
	case <-time.After(300 * time.Millisecond): // the request waits
	}
	close(answer)
	if status := <-got; !strings.HasPrefix(status, "418") {
		t.Errorf("%s: the request was not forwarded", status)
	}
}

// bareProxy starts a proxy with an embedded etcd and the instances of the flags that args returns. It
// returns the proxy's address as soon as the proxy accepts connections.
func bareProxy(t *testing.T, args func(address string) []string) string {
	t.Helper()
	address, _ := startBareProxy(t, args)
	return address
}

// startBareProxy is bareProxy, and also returns the process.
func startBareProxy(t *testing.T, args func(address string) []string) (string, *fleet.Process) {
	t.Helper()
	ports, err := fleet.FreePorts(2)
	require.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	p, err := newFleet(t).Start(t.Context(), fleet.Spec{
		Name: "proxy", Program: "proxy",
		Args: append([]string{
			"--port", fmt.Sprint(ports[0]), "--etcd-listen", fmt.Sprintf("127.0.0.1:%d", ports[1]), "--etcd-data-dir", t.TempDir(),
			"--state-dir", t.TempDir(),
		}, args(address)...),
		Ready: func(context.Context) error {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	})
	require.NoError(t, err)
	return address, p
}
