// Command tlscost reports what TLS with clients costs the proxy: its processor time for one
// small request on a kept connection, over TLS and over plain TCP, with the standard
// library's server and client and with our own. All proxies are up at once and take turns.
package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

const body = `{"model":"m","prompt":"` + "tell me of the sea, and of the ships that are on it, and of who sails them; " + `","max_tokens":1,"temperature":0}`

// target is a proxy that is measured.
type target struct {
	name     string
	kind     string // of --upstream
	tls      bool
	url      string
	cmd      *exec.Cmd
	client   *http.Client
	perRound []float64 // microseconds of its processor time for a request
}

func main() {
	proxy := flag.String("proxy", "bin/proxy", "the program")
	requests := flag.Int("requests", 20_000, "requests in a round, for each proxy")
	rounds := flag.Int("rounds", 7, "rounds; the median counts")
	conns := flag.Int("conns", 8, "connections, all kept")
	flag.Parse()
	if err := run(context.Background(), *proxy, *requests, *rounds, *conns); err != nil {
		fmt.Fprintln(os.Stderr, "tlscost:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program string, requests, rounds, conns int) error {
	dir, err := os.MkdirTemp("", "tlscost-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	pool, err := certificate(dir)
	if err != nil {
		return err
	}
	shared := fakevllm.NewShared()
	var engines []string
	for _, role := range []fakevllm.Role{fakevllm.RolePrefill, fakevllm.RoleDecode} {
		e, err := fakevllm.Start(ctx, fakevllm.Options{Role: role, Mode: fakevllm.Plain, Models: []string{"m"}, Shared: shared})
		if err != nil {
			return err
		}
		defer e.Close()
		engines = append(engines, e.Address())
	}
	targets := []*target{
		{name: "std, plain", kind: "std"}, {name: "std, TLS", kind: "std", tls: true},
		{name: "fast, plain", kind: "fast"}, {name: "fast, TLS", kind: "fast", tls: true},
	}
	for i, t := range targets {
		if err := t.start(ctx, program, filepath.Join(dir, strconv.Itoa(i)), dir, engines, pool, conns); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		defer t.stop()
	}
	for round := range rounds + 1 { // the first one warms up
		for i := range targets {
			t := targets[(i+round)%len(targets)]
			used, err := t.round(ctx, requests, conns)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			if round > 0 {
				t.perRound = append(t.perRound, used)
			}
		}
	}
	fmt.Fprintf(os.Stdout, "processor time of the proxy for a small request on a kept connection, median of %d rounds of %d\n\n", rounds, requests)
	for _, t := range targets {
		fmt.Fprintf(os.Stdout, "%-12s %6.1f µs   (%.1f to %.1f)\n", t.name, median(t.perRound), slices.Min(t.perRound), slices.Max(t.perRound))
	}
	fmt.Fprintf(os.Stdout, "\nstd, TLS against plain: %.2f times (gate: 1.50)\nfast, TLS against plain: %.2f times (no gate: over TLS it is the standard library's server)\n",
		ratio(targets[1], targets[0]), ratio(targets[3], targets[2]))
	return nil
}

// ratio is the median of the ratios within the rounds.
func ratio(a, b *target) float64 {
	var list []float64
	for i := range a.perRound {
		list = append(list, a.perRound[i]/b.perRound[i])
	}
	return median(list)
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

func (t *target) start(ctx context.Context, program, state, certs string, engines []string, pool *x509.CertPool, conns int) error {
	ports := make([]string, 2)
	for i := range ports {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		ports[i] = strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
		_ = ln.Close()
	}
	args := []string{
		"--upstream", t.kind, "--port", ports[0], "--etcd-listen", "127.0.0.1:" + ports[1], "--etcd-data-dir", state + "-etcd",
		"--state-dir", state, "--prefill", engines[0], "--decode", engines[1],
	}
	transport := &http.Transport{MaxIdleConnsPerHost: conns, TLSClientConfig: &tls.Config{RootCAs: pool}}
	t.client, t.url = &http.Client{Transport: transport, Timeout: time.Minute}, "http://127.0.0.1:"+ports[0]
	if t.tls {
		args = append(args, "--tls-cert", filepath.Join(certs, "cert.pem"), "--tls-key", filepath.Join(certs, "key.pem"))
		t.url = "https://127.0.0.1:" + ports[0]
	}
	log, err := os.Create(state + ".log")
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	t.cmd = exec.CommandContext(ctx, program, args...)
	t.cmd.Stdout, t.cmd.Stderr = log, log
	if err := t.cmd.Start(); err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 400 {
		if err = t.ask(ctx); err == nil {
			return nil
		}
		<-tick.C
	}
	text, _ := os.ReadFile(log.Name())
	return fmt.Errorf("it does not serve: %w\n%s", err, text)
}

func (t *target) stop() {
	t.client.CloseIdleConnections()
	_ = t.cmd.Process.Signal(syscall.SIGTERM)
	_ = t.cmd.Wait()
}

var errStatus = errors.New("not answered with 200")

func (t *target) ask(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%w: %s %.200s", errStatus, resp.Status, text)
	}
	return err
}

// round sends the requests and returns the processor time for one.
func (t *target) round(ctx context.Context, requests, conns int) (float64, error) {
	before, err := t.used()
	if err != nil {
		return 0, err
	}
	var left atomic.Int64
	left.Store(int64(requests))
	var work sync.WaitGroup
	errs := make([]error, conns)
	for i := range conns {
		work.Go(func() {
			for errs[i] == nil && left.Add(-1) >= 0 {
				errs[i] = t.ask(ctx)
			}
		})
	}
	work.Wait()
	after, err := t.used()
	return float64(after-before) / float64(time.Microsecond) / float64(requests), errors.Join(append(errs, err)...)
}

// used is the processor time that the threads of the process have taken, without its etcd,
// which has a process of its own.
func (t *target) used() (sum time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", t.cmd.Process.Pid))
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue // it has just ended; Go's threads seldom do
		}
		first, _, _ := bytes.Cut(raw, []byte(" "))
		n, err := strconv.ParseInt(string(first), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n)
	}
	return sum, err
}

// certificate writes one for 127.0.0.1, signed by itself.
func certificate(dir string) (*x509.CertPool, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return pool, errors.Join(
		os.WriteFile(filepath.Join(dir, "cert.pem"), cert, 0o600),
		os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}
