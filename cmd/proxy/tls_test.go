package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/collector"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

const tlsPatience = time.Minute

// inProcess is a proxy that runs in the test's process.
type inProcess struct {
	t    *testing.T
	url  string
	port string
	log  *testkit.Buffer
}

// runProxy runs a proxy until the end of the test.
func runProxy(t *testing.T, args ...string) *inProcess {
	t.Helper()
	p := &inProcess{t: t, log: &testkit.Buffer{}}
	var out testkit.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	home := t.TempDir()
	env := func(name string) (string, bool) { return home, name == "HOME" }
	go func() {
		// A slow handshake on a busy machine must not count as a failed connection.
		done <- run(ctx, append([]string{"--port", "0", "--shutdown-timeout", "5s", "--connect-timeout", "1m"}, args...), env, &out, p.log)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != 0 {
			t.Errorf("the proxy ends with %d", code)
		}
		if t.Failed() {
			t.Logf("proxy:\n%s", p.log)
		}
	})
	at := regexp.MustCompile(`serving on (https?://\S+:(\d+)), etcd at .*, prefix /\S+\n`)
	testkit.Eventually(t, tlsPatience, func() error {
		m := at.FindStringSubmatch(out.String())
		if m == nil {
			return fmt.Errorf("%s%s", &out, p.log)
		}
		p.url, p.port = m[1], m[2]
		return nil
	})
	return p
}

// engines starts a prefill and a decode engine that serve TLS and need no transfer params in
// the request. It returns their addresses.
func engines(t *testing.T, config *tls.Config) (prefill, decode string) {
	t.Helper()
	shared := fakevllm.NewShared()
	start := func(role fakevllm.Role) string {
		e := fakevllm.StartTest(t, fakevllm.Options{Role: role, Mode: fakevllm.Plain, Models: []string{"m"}, Shared: shared, PromptTokensDetails: true})
		return testkit.TLSFront(t, config, e.Address())
	}
	return start(fakevllm.RolePrefill), start(fakevllm.RoleDecode)
}

// secureEtcd returns an etcd that requires client certificates, and a client of it.
func secureEtcd(t *testing.T, a *testkit.Authority) (endpoint string, cli *clientv3.Client) {
	t.Helper()
	cert, key := a.Issue("etcd", testkit.Certificate{CN: "etcd", Hosts: []string{"127.0.0.1"}})
	a.Issue("test", testkit.Certificate{CN: "test"})
	e := etcdtest.Start(t, etcdtest.WithTLS(cert, key, a.CA))
	cli, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{"https://" + e.Endpoint()},
		TLS:         &tls.Config{RootCAs: a.Pool(), Certificates: []tls.Certificate{a.Pair("test")}},
		DialTimeout: tlsPatience,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cli.Close() })
	return "https://" + e.Endpoint(), cli
}

func put(t *testing.T, cli *clientv3.Client, key, value string) {
	t.Helper()
	members.Put(t, cli, key, value)
}

// tlsClient returns a client for a proxy that requires client certificates.
func tlsClient(t *testing.T, a *testkit.Authority, name string) *http.Client {
	t.Helper()
	c := &tls.Config{RootCAs: a.Pool()}
	if name != "" {
		c.Certificates = []tls.Certificate{a.Pair(name)}
	}
	tr := &http.Transport{TLSClientConfig: c, MaxIdleConnsPerHost: 16}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: tlsPatience}
}

const tlsPrompt = `{"model":"m","prompt":"tell me","max_tokens":4,"temperature":0}`

// complete sends one completion and returns the answer.
func (p *inProcess) complete(hc *http.Client) (int, string, error) {
	resp, err := testkit.Ask(context.Background(), hc, http.MethodPost, p.url+"/v1/completions", tlsPrompt)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func (p *inProcess) get(hc *http.Client, path string) (string, error) {
	resp, err := testkit.Ask(context.Background(), hc, http.MethodGet, p.url+path, "")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// All connections use TLS with certificates of both sides, which are replaced while requests run: no request
// fails, and new connections see the new certificates.
func TestCertificates_RotatedUnderLoad(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{upstream.KindOwn, upstream.KindStd} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := testkit.NewAuthority(t, "fleet")
			a.Issue("client", testkit.Certificate{CN: "client"})
			here := []string{"127.0.0.1"}
			cert, key := a.Issue("proxy", testkit.Certificate{CN: "proxy 1", Hosts: here})
			engineCert, engineKey := a.Issue("to-engines", testkit.Certificate{CN: "to engines 1"})
			etcdCert, etcdKey := a.Issue("to-etcd", testkit.Certificate{CN: "to etcd"})
			a.Issue("engine", testkit.Certificate{CN: "engine", Hosts: here})

			var seen sync.Map // names of the proxy's certificates that engines have seen
			prefill, decode := engines(t, &tls.Config{
				Certificates: []tls.Certificate{a.Pair("engine")}, ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
				VerifyConnection: func(s tls.ConnectionState) error {
					seen.Store(s.PeerCertificates[0].Subject.CommonName, true)
					return nil
				},
			})
			endpoint, cli := secureEtcd(t, a)
			put(t, cli, "/pd/prefill/"+prefill, "https://"+prefill)
			put(t, cli, "/pd/decode/"+decode, "https://"+decode)
			p := runProxy(t, "--upstream", kind, "--etcd-endpoints", endpoint,
				"--etcd-ca", a.CA, "--etcd-cert", etcdCert, "--etcd-key", etcdKey,
				"--engine-ca", a.CA, "--engine-cert", engineCert, "--engine-key", engineKey,
				"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", a.CA)
			kept := tlsClient(t, a, "client")
			shown := func() string {
				fresh, err := (&tls.Dialer{Config: kept.Transport.(*http.Transport).TLSClientConfig}).DialContext(t.Context(), "tcp", "127.0.0.1:"+p.port)
				if err != nil {
					t.Error(err)
					return ""
				}
				defer fresh.Close()
				return fresh.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
			}
			testkit.Eventually(t, tlsPatience, func() error {
				code, text, err := p.complete(kept)
				if code != http.StatusOK {
					return fmt.Errorf("%d %s %w", code, text, err)
				}
				return nil
			})

			var done atomic.Int64
			stop := make(chan struct{})
			var load sync.WaitGroup
			for i := range 6 {
				load.Go(func() {
					hc := kept
					for {
						select {
						case <-stop:
							return
						default:
						}
						if i%2 == 0 { // each request on a new connection
							hc = tlsClient(t, a, "client")
							hc.Transport.(*http.Transport).DisableKeepAlives = true
						}
						if code, text, err := p.complete(hc); code != http.StatusOK {
							t.Errorf("%d %s %v", code, text, err)
							return
						}
						done.Add(1)
					}
				})
			}
			for n := 2; n <= 3; n++ {
				want, before := fmt.Sprint("proxy ", n), done.Load()
				a.Issue("proxy", testkit.Certificate{CN: want, Hosts: here})
				a.Issue("to-engines", testkit.Certificate{CN: fmt.Sprint("to engines ", n)})
				testkit.Eventually(t, tlsPatience, func() error {
					if is := shown(); is != want {
						return fmt.Errorf("shows %q", is)
					}
					if done.Load() < before+50 {
						return errors.New("few requests")
					}
					return nil
				})
			}
			close(stop)
			load.Wait()
			testkit.Eventually(t, tlsPatience, func() error { // idle connections to engines have been closed
				if code, text, err := p.complete(kept); code != http.StatusOK {
					t.Fatalf("%d %s %v", code, text, err)
				}
				if _, ok := seen.Load("to engines 3"); !ok {
					return errors.New("no engine has seen the last certificate")
				}
				return nil
			})
			text, err := p.get(kept, "/metrics")
			if err != nil || !strings.Contains(text, `pd_tls_reloads_total{use="listener"} 2`) ||
				!strings.Contains(text, `pd_tls_certificate_expiry_timestamp_seconds{use="etcd"}`) {
				t.Errorf("%v\n%s", err, text)
			}
			var out bytes.Buffer
			env := func(string) (string, bool) { return "", false }
			if code := run(t.Context(), []string{"health", "--port", p.port, "--tls-cert", cert, "--tls-key", key}, env, &out, &out); code != 0 {
				t.Errorf("health: %d %s", code, &out)
			}
			if code, _, errs := ask(t, nil, "health", "--port", p.port); code != 1 || !strings.Contains(errs, "400 Bad Request: does it use TLS? Set --tls-cert and --tls-key\n") {
				t.Errorf("health without TLS: %d %s", code, errs)
			}
		})
	}
}

// A request over TLS is traced as https, one without as http.
func TestTracesOfTLS(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t, "fleet")
	cert, key := a.Issue("proxy", testkit.Certificate{Hosts: []string{"127.0.0.1"}})
	etcd, engine := etcdtest.Start(t), fakevllm.StartTest(t, fakevllm.Options{Models: []string{"m"}})
	for scheme, args := range map[string][]string{"http": nil, "https": {"--tls-cert", cert, "--tls-key", key}} {
		spans := collector.Start(t)
		p := runProxy(t, append(args, "--etcd-endpoints", etcd.Endpoint(), "--etcd-prefix", "/"+scheme, "--decode", engine.Address(),
			"--otlp-endpoint", spans.URL, "--trace-sample", "1")...)
		testkit.Eventually(t, tlsPatience, func() error {
			if code, text, err := p.complete(tlsClient(t, a, "")); code != http.StatusOK {
				return fmt.Errorf("%d %s, %w", code, text, err)
			}
			return nil
		})
		testkit.Eventually(t, tlsPatience, func() error {
			for _, s := range spans.Spans() {
				if got := s.Attribute("url.scheme"); got == scheme {
					return nil
				} else if got != "" {
					t.Fatalf("a request over %s is traced as %s", scheme, got)
				}
			}
			return errors.New("no span of a request")
		})
	}
}

// A client with a wrong certificate is refused, and both sides get the reason.
func TestClientsRefusedByTLS(t *testing.T) {
	t.Parallel()
	a, other := testkit.NewAuthority(t, "fleet"), testkit.NewAuthority(t, "strangers")
	cert, key := a.Issue("proxy", testkit.Certificate{Hosts: []string{"127.0.0.1"}})
	a.Issue("old", testkit.Certificate{CN: "old", From: -2 * time.Hour, Until: -time.Hour})
	other.Issue("stranger", testkit.Certificate{CN: "stranger"})
	a.Issue("good", testkit.Certificate{CN: "good"})
	p := runProxy(t, "--etcd-endpoints", etcdtest.Start(t).Endpoint(), "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", a.CA)
	for _, tc := range []struct {
		name, alert, log string
		pair             []tls.Certificate
		roots            *testkit.Authority
	}{
		{"none", "certificate required", "it sent no certificate", nil, a},
		{"expired", "expired certificate", "its certificate has expired at ", []tls.Certificate{a.Pair("old")}, a},
		{"another authority's", "unknown certificate authority", "signed by an unknown authority", []tls.Certificate{other.Pair("stranger")}, a},
		{"distrusts the proxy", "unknown authority", "it rejected our certificate", []tls.Certificate{a.Pair("good")}, other},
	} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs: tc.roots.Pool(),
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if tc.pair == nil {
					return new(tls.Certificate), nil
				}
				return &tc.pair[0], nil
			},
		}}
		_, err := p.get(&http.Client{Transport: tr, Timeout: tlsPatience}, "/livez")
		tr.CloseIdleConnections()
		if err == nil || !strings.Contains(err.Error(), tc.alert) {
			t.Errorf("%s: %v", tc.name, err)
		}
		testkit.Eventually(t, tlsPatience, func() error {
			if !strings.Contains(p.log.String(), tc.log) {
				return fmt.Errorf("%s: %q is not in\n%s", tc.name, tc.log, p.log)
			}
			return nil
		})
	}
	if text, err := p.get(tlsClient(t, a, "good"), "/livez"); err != nil {
		t.Errorf("%v %s", err, text)
	}
}

// health --live does not fail if the proxy has rejected its certificate files or its clients' CA did not sign
// them: a restart with such files would end a proxy that serves.
func TestHealthWithUnusableFiles(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	for _, tc := range []struct {
		name             string
		mutual, stranger bool
		health           string // output of health
	}{
		{name: "key of another certificate", health: "not ready: "},
		{name: "key of another certificate, with client certificates", mutual: true, health: "ask 127.0.0.1:PORT: TLS: private key does not match public key"},
		{name: "refused as a client", mutual: true, stranger: true, health: "ask 127.0.0.1:PORT: TLS: it rejected our certificate: signed by an authority that it does not know"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			a, other := testkit.NewAuthority(t, "fleet"), testkit.NewAuthority(t, "strangers")
			cert, key := a.Issue("proxy", testkit.Certificate{Hosts: []string{"127.0.0.1"}})
			args := []string{"--tls-cert", cert, "--tls-key", key}
			if tc.mutual {
				ca := a
				if tc.stranger {
					ca = other
				}
				args = append(args, "--tls-client-ca", ca.CA)
			}
			p := runProxy(t, append(args, "--etcd-endpoints", etcd.Endpoint())...)
			if !tc.stranger {
				_, strangers := other.Issue("stranger", testkit.Certificate{})
				testkit.WriteFile(t, key, string(testkit.ReadFile(t, strangers)))
			}
			health := append([]string{"health", "--port", p.port}, args...)
			if code, out, errs := ask(t, nil, append(health, "--live")...); code != 0 || out != "alive\n" {
				t.Errorf("health --live: %d %q %q", code, out, errs)
			}
			if code, _, errs := ask(t, nil, health...); code != 1 || !strings.Contains(errs, strings.ReplaceAll(tc.health, "PORT", p.port)) {
				t.Errorf("health: %d %q", code, errs)
			}
		})
	}
}

// An engine that is not trusted, or that does not trust the proxy, is reported: to the client in vLLM's
// format, in the log, and in /status if the proxy's own probe detected it.
func TestEnginesRefusedByTLS(t *testing.T) {
	t.Parallel()
	a, other := testkit.NewAuthority(t, "fleet"), testkit.NewAuthority(t, "strangers")
	here := []string{"127.0.0.1"}
	good, goodKey := a.Issue("good", testkit.Certificate{CN: "good", Hosts: here})
	old, oldKey := a.Issue("old", testkit.Certificate{CN: "old", Hosts: here, From: -2 * time.Hour, Until: -time.Hour})
	a.Issue("named", testkit.Certificate{CN: "named", Hosts: []string{"engine-7"}})
	stranger, strangerKey := other.Issue("stranger", testkit.Certificate{CN: "stranger", Hosts: here})
	for _, tc := range []struct {
		name      string
		engine    tls.Certificate
		mutual    bool
		cert, key string // of the proxy
		args      []string
		reason    string // "" if requests are served
		says      string
	}{
		{name: "another name, set for the proxy", engine: a.Pair("named"), cert: good, key: goodKey, args: []string{"--engine-server-name", "engine-7"}},
		{name: "wrong name", engine: a.Pair("named"), cert: good, key: goodKey, reason: "wrong_name", says: "its certificate is for another name"},
		{name: "expired", engine: a.Pair("old"), cert: good, key: goodKey, reason: "expired", says: "its certificate has expired at "},
		{name: "unknown authority", engine: other.Pair("stranger"), cert: good, key: goodKey, reason: "unknown_authority", says: `signed by an unknown authority`},
		{name: "wrong client certificate", engine: a.Pair("good"), mutual: true, cert: stranger, key: strangerKey, reason: "unknown_authority", says: "it rejected our certificate: signed by an authority that it does not know"},
		{name: "expired client certificate", engine: a.Pair("good"), mutual: true, cert: old, key: oldKey, reason: "expired", says: "it rejected our certificate: expired or revoked"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := &tls.Config{Certificates: []tls.Certificate{tc.engine}}
			if tc.mutual {
				c.ClientCAs, c.ClientAuth = a.Pool(), tls.RequireAndVerifyClientCert
			}
			prefill, decode := engines(t, c)
			etcd := etcdtest.Start(t)
			cli := etcd.Client(t)
			// One instance is reported ready by its agent, the other one is probed by the proxy.
			record := func(address string) string {
				return fmt.Sprintf(`{"v":1,"id":"1","address":%q,"scheme":"https","models":["m"],"state":"ready","source":"agent"}`, address)
			}
			lease, err := cli.Grant(t.Context(), 600)
			require.NoError(t, err)
			members.Put(t, cli, "/pd/decode/"+decode, record(decode), clientv3.WithLease(lease.ID))
			put(t, cli, "/pd/prefill/"+prefill, "https://"+prefill)
			p := runProxy(t, append([]string{
				"--etcd-endpoints", etcd.Endpoint(), "--engine-ca", a.CA, "--engine-cert", tc.cert, "--engine-key", tc.key,
			}, tc.args...)...)
			hc := &http.Client{Timeout: tlsPatience, Transport: &http.Transport{DisableKeepAlives: true}}
			want := http.StatusOK
			if tc.reason != "" {
				want = http.StatusBadGateway
			}
			testkit.Eventually(t, tlsPatience, func() error {
				code, text, err := p.complete(hc)
				if code != want || tc.reason != "" && !strings.Contains(text, "("+tc.reason+")") {
					return fmt.Errorf("%d %s, %w", code, text, err)
				}
				var e struct {
					Error struct {
						Message, Type string
						Code          int
					}
				}
				if want == http.StatusBadGateway && (json.Unmarshal([]byte(text), &e) != nil || e.Error.Code != want || e.Error.Message == "") {
					t.Errorf("not vLLM's shape: %s", text)
				}
				return nil
			})
			if tc.reason == "" {
				return
			}
			testkit.Eventually(t, tlsPatience, func() error { // the log is written in the background
				if log := p.log.String(); !strings.Contains(log, "TLS with an engine failed: "+tc.says) && !strings.Contains(log, strings.ReplaceAll(tc.says, `"`, `\"`)) {
					return fmt.Errorf("%q is not in the log", tc.says)
				}
				return nil
			})
			testkit.Eventually(t, tlsPatience, func() error {
				text, err := p.get(hc, "/status")
				var s struct {
					Instances []struct{ Address, View, Reason string }
				}
				if err == nil {
					err = json.Unmarshal([]byte(text), &s)
				}
				for _, in := range s.Instances {
					if in.Address == prefill && in.View == "unverified" && strings.Contains(in.Reason, "no TLS") && strings.Contains(in.Reason, tc.says) {
						return nil
					}
				}
				return fmt.Errorf("%w\n%s", err, text)
			})
		})
	}
}

// A registered engine that refuses the proxy is ejected, and /status has the TLS reason, while another engine
// serves.
func TestRegisteredEngineRefusedByTLS(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t, "fleet")
	a.Issue("engine", testkit.Certificate{CN: "engine", Hosts: []string{"127.0.0.1"}})
	open := &tls.Config{Certificates: []tls.Certificate{a.Pair("engine")}, MinVersion: tls.VersionTLS12}
	mutual := open.Clone()
	mutual.ClientCAs, mutual.ClientAuth = a.Pool(), tls.RequireAndVerifyClientCert
	prefill, decode := engines(t, open)
	refusing, _ := engines(t, mutual)
	etcd := etcdtest.Start(t)
	cli := etcd.Client(t)
	lease := members.Lease(t, cli, 600)
	for _, k := range []string{"prefill/" + prefill, "prefill/" + refusing, "decode/" + decode} {
		members.Put(t, cli, "/pd/"+k, `{"v":1,"id":"1","scheme":"https","models":["m"],"state":"ready","source":"agent"}`, clientv3.WithLease(lease))
	}
	p := runProxy(t, "--etcd-endpoints", etcd.Endpoint(), "--engine-ca", a.CA, "--prefill-policy", "round_robin", "--max-failures", "1")
	hc := &http.Client{Timeout: tlsPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	testkit.Eventually(t, tlsPatience, func() error {
		code, answer, err := p.complete(hc)
		if code != http.StatusOK {
			return fmt.Errorf("%d %s, %w", code, answer, err)
		}
		text, err := p.get(hc, "/status")
		var s struct {
			Instances []struct{ Address, Reason string }
		}
		if err == nil {
			err = json.Unmarshal([]byte(text), &s)
		}
		for _, in := range s.Instances {
			if in.Address == refusing && strings.Contains(in.Reason, "no TLS: it requires a client certificate") {
				return nil
			}
		}
		return fmt.Errorf("%w\n%s", err, text)
	})
}

// /readyz and the log report an etcd that refuses the proxy's certificate, or that the proxy does not trust.
func TestEtcdRefusedByTLS(t *testing.T) {
	t.Parallel()
	a, other := testkit.NewAuthority(t, "fleet"), testkit.NewAuthority(t, "strangers")
	endpoint, _ := secureEtcd(t, a)
	good, goodKey := a.Issue("good", testkit.Certificate{CN: "good"})
	old, oldKey := a.Issue("old", testkit.Certificate{CN: "old", From: -2 * time.Hour, Until: -time.Hour})
	stranger, strangerKey := other.Issue("stranger", testkit.Certificate{CN: "stranger"})
	named, namedKey := a.Issue("named", testkit.Certificate{CN: "etcd", Hosts: []string{"etcd-1"}})
	elsewhere := "https://" + etcdtest.Start(t, etcdtest.WithTLS(named, namedKey, "")).Endpoint()
	for _, tc := range []struct {
		name, endpoint, ca, cert, key, says string
	}{
		{"unknown authority", endpoint, other.CA, good, goodKey, "its certificate is signed by an unknown authority"},
		{"wrong name", elsewhere, a.CA, good, goodKey, "its certificate is for another name"},
		{"wrong client certificate", endpoint, a.CA, stranger, strangerKey, "it rejected our certificate"},
		{"expired client certificate", endpoint, a.CA, old, oldKey, "it rejected our certificate"},
		{"no client certificate", endpoint, a.CA, "", "", "it requires a client certificate"},
		{"etcd without TLS", "https://" + strings.TrimPrefix(etcdtest.Start(t).Endpoint(), "http://"), a.CA, "", "", "it does not speak TLS"},
		{"no TLS", strings.TrimPrefix(endpoint, "https://"), "", "", "", "speaks TLS: write https://"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--etcd-endpoints", tc.endpoint}
			for flag, value := range map[string]string{"--etcd-ca": tc.ca, "--etcd-cert": tc.cert, "--etcd-key": tc.key} {
				if value != "" {
					args = append(args, flag, value)
				}
			}
			p := runProxy(t, args...)
			hc := &http.Client{Timeout: tlsPatience, Transport: &http.Transport{DisableKeepAlives: true}}
			testkit.Eventually(t, tlsPatience, func() error {
				text, err := p.get(hc, "/readyz")
				if !strings.Contains(text, tc.says) {
					return fmt.Errorf("%s, %w", text, err)
				}
				return nil
			})
		})
	}
}
