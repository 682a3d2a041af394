package e2e_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// peer is one connection of a client.
type peer struct {
	net.Conn
	in *bufio.Reader
}

func dialPeer(t *testing.T, address string) *peer {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(soon))
	return &peer{c, bufio.NewReader(c)}
}

// send sends a request and reads the header of its response.
func (p *peer) send(method, path, body string) (*http.Response, error) {
	if _, err := fmt.Fprintf(p, "%s %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body); err != nil {
		return nil, err
	}
	return http.ReadResponse(p.in, nil)
}

// get returns the status of a response without reading its body, and whether the connection closes
// after it.
func (p *peer) get(method, path, body string) (status int, closes bool, err error) {
	resp, err := p.send(method, path, body)
	if err != nil {
		return 0, false, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Close, errors.Join(err, resp.Body.Close())
}

// awaitServing waits until a proxy serves the model of the package.
func awaitServing(t *testing.T, address string) {
	t.Helper()
	awaitReadyz(t, address, http.StatusOK)
}

// awaitReadyz waits until /readyz of a proxy answers with a status.
func awaitReadyz(t *testing.T, address string, want int) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		c := dialPeer(t, address)
		defer c.Close()
		if status, _, err := c.get(http.MethodGet, "/readyz", ""); err != nil || status != want {
			return fmt.Errorf("/readyz: %d, %w", status, err)
		}
		return nil
	})
}

// awaitEnd waits until a process has exited and returns its log.
func awaitEnd(t *testing.T, p *fleet.Process) string {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(soon):
		t.Fatalf("it does not exit:\n%s", p.LogTail(20))
	}
	if err := p.Err(); err != nil {
		t.Errorf("%v\n%s", err, p.LogTail(20))
	}
	log, err := os.ReadFile(p.LogFile())
	require.NoError(t, err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "level=error") || strings.Contains(line, "use of closed network connection") {
			t.Errorf("logged at the stop: %s", line)
		}
	}
	return string(log)
}

const oneToken = `{"model":"` + model + `","prompt":"a","max_tokens":1}`

// After SIGTERM the proxy serves for --shutdown-delay: /readyz answers 503, new and idle connections are
// served, and each response closes its connection. A second signal skips the delay.
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{model}})
	address, p := startBareProxy(t, func(string) []string {
		return []string{"--decode", engine.Address(), "--shutdown-delay", "1h"}
	})
	awaitServing(t, address)
	var idle []*peer
	for range 4 {
		c := dialPeer(t, address)
		if status, closes, err := c.get(http.MethodPost, "/v1/completions", oneToken); status != http.StatusOK || closes || err != nil {
			t.Fatalf("before the signal: %d, closes %t, %v", status, closes, err)
		}
		idle = append(idle, c)
	}
	require.NoError(t, p.Signal(syscall.SIGTERM))
	awaitReadyz(t, address, http.StatusServiceUnavailable)
	for i, c := range append(idle, dialPeer(t, address)) {
		if status, closes, err := c.get(http.MethodPost, "/v1/completions", oneToken); status != http.StatusOK || !closes || err != nil {
			t.Errorf("connection %d: %d, closes %t, %v", i, status, closes, err)
		}
	}
	if status, _, err := dialPeer(t, address).get(http.MethodGet, "/livez", ""); status != http.StatusOK {
		t.Errorf("/livez: %d, %v", status, err)
	}
	require.NoError(t, p.Signal(syscall.SIGTERM))
	awaitEnd(t, p)
}

// SIGHUP, as of a closed terminal, stops the proxy like SIGTERM.
func TestHangup(t *testing.T) {
	t.Parallel()
	handled := make(chan os.Signal, 1)
	signal.Notify(handled, syscall.SIGHUP) // or the proxy inherits that it is ignored, as under nohup
	defer signal.Stop(handled)
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{model}})
	address, p := startBareProxy(t, func(string) []string {
		return []string{"--decode", engine.Address(), "--shutdown-delay", "1h"}
	})
	awaitServing(t, address)
	require.NoError(t, p.Signal(syscall.SIGHUP))
	awaitReadyz(t, address, http.StatusServiceUnavailable)
	require.NoError(t, p.Signal(syscall.SIGHUP))
	awaitEnd(t, p)
}

// During --shutdown-delay, requests in the queue wait for capacity as before.
func TestShutdownDelay_Queue(t *testing.T) {
	t.Parallel()
	// Its KV cache has space for one request.
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{model}, ITL: time.Hour, CacheBlocks: 10})
	address, p := startBareProxy(t, func(string) []string {
		return []string{"--decode", engine.Address(), "--shutdown-delay", "1h", "--queue", "on", "--scrape-interval", "100ms"}
	})
	awaitServing(t, address)
	eventually := func(want string) {
		t.Helper()
		testkit.Eventually(t, soon, func() error {
			if body := string(get(t, "http://"+address+"/status")); !strings.Contains(body, want) {
				return errors.New(body)
			}
			return nil
		})
	}
	eventually(`"kv_capacity_tokens":`)
	stream := dialPeer(t, address)
	if resp, err := stream.send(http.MethodPost, "/v1/completions", `{"model":"`+model+`","prompt":"a","max_tokens":9,"stream":true}`); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	waits, answered := dialPeer(t, address), make(chan string, 1)
	go func() {
		status, _, err := waits.get(http.MethodPost, "/v1/completions", oneToken)
		answered <- fmt.Sprint(status, err)
	}()
	eventually(`"default":1`)
	require.NoError(t, p.Signal(syscall.SIGTERM))
	awaitReadyz(t, address, http.StatusServiceUnavailable)
	_ = stream.Close()
	assert.Equal(t, "200 <nil>", <-answered, "the request that waited")
	require.NoError(t, p.Signal(syscall.SIGTERM))
	awaitEnd(t, p)
}

// SIGINT stops the proxy without the delay.
func TestInterruptSkipsShutdownDelay(t *testing.T) {
	t.Parallel()
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{model}})
	address, p := startBareProxy(t, func(string) []string {
		return []string{"--decode", engine.Address(), "--shutdown-delay", "1h"}
	})
	awaitServing(t, address)
	require.NoError(t, p.Signal(os.Interrupt))
	awaitEnd(t, p)
}

// SIGTERM while the embedded etcd starts is an orderly stop, and etcd can start again with the same
// files.
func TestStopWhileEtcdStarts(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	start := func() (string, *fleet.Process) {
		return startBareProxy(t, func(string) []string { return []string{"--etcd-data-dir", data} })
	}
	for range 3 {
		_, p := start() // the proxy listens before it starts etcd
		require.NoError(t, p.Signal(syscall.SIGTERM))
		awaitEnd(t, p)
	}
	address, _ := start()
	testkit.Eventually(t, soon, func() error {
		_, body, err := harness.Send(t.Context(), http.MethodGet, "http://"+address+"/readyz", "")
		// Without instances it cannot serve, but it has read the membership.
		if err != nil || !strings.Contains(body, `"started":true`) {
			return fmt.Errorf("%s, %w", body, err)
		}
		return nil
	})
}

// Clients of requests that are cut at the end of --shutdown-timeout get an error, and the access log has its
// outcome.
func TestCutRequests(t *testing.T) {
	t.Parallel()
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{model}, ITL: time.Hour})
	address, p := startBareProxy(t, func(string) []string {
		return []string{"--decode", engine.Address(), "--shutdown-timeout", "100ms"}
	})
	awaitServing(t, address)
	const streams = 64
	body := `{"model":"` + model + `","prompt":"a","max_tokens":9,"stream":true}`
	var open []*http.Response
	for range streams {
		resp, err := dialPeer(t, address).send(http.MethodPost, "/v1/completions", body)
		require.True(t, err == nil && resp.StatusCode == http.StatusOK, "%v, %v", resp, err)
		defer resp.Body.Close()
		if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		open = append(open, resp)
	}
	waits, answered := dialPeer(t, address), make(chan string, 1)
	go func() {
		status, _, err := waits.get(http.MethodPost, "/v1/completions", strings.Replace(body, "true", "false", 1))
		answered <- fmt.Sprint(status, err)
	}()
	// The body of this request does not arrive.
	partial, read := dialPeer(t, address), make(chan string, 1)
	require.NoError(t, engine.Script(fakevllm.Fault{Kind: fakevllm.FaultHang, Path: "/v1/responses/x"}))
	go func() {
		_, err := io.WriteString(partial, "GET /v1/responses/x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n")
		resp, readErr := http.ReadResponse(partial.in, nil)
		if err := errors.Join(err, readErr); err != nil {
			read <- err.Error()
			return
		}
		_ = resp.Body.Close()
		read <- resp.Status
	}()
	testkit.Until(t, soon, engine.Counters, func(c fakevllm.Counters) bool { return c.Requests > streams && c.Faults > 0 })
	require.NoError(t, p.Signal(syscall.SIGTERM))
	for _, resp := range open {
		rest, err := io.ReadAll(resp.Body)
		if i := strings.LastIndex(string(rest), "data: "); err == nil || i < 0 || !strings.HasPrefix(string(rest[i:]), `data: {"error":`) {
			t.Errorf("a cut stream ended with %v: %s", err, rest)
		}
	}
	assert.Equal(t, "503 <nil>", <-answered, "the request that waited")
	assert.Equal(t, "503 Service Unavailable", <-read, "the request whose body does not arrive")
	log := awaitEnd(t, p)
	for text, want := range map[string]int{"outcome=broken": streams, "outcome=unavailable": 2, fmt.Sprintf("requests=%d", streams+2): 1} {
		assert.Equal(t, want, strings.Count(log, text), "lines with %s:\n%s", text, log)
	}
}
