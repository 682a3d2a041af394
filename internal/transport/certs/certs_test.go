package certs_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/transport/certs"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func open(t *testing.T, f certs.Files, log *testkit.Buffer) *certs.Source {
	t.Helper()
	o := certs.Options{Use: certs.UseListener, Files: f}
	if log != nil {
		o.Log = logger(log)
	}
	s, err := certs.Open(o)
	require.NoError(t, err)
	return s
}

func logger(out io.Writer) *logrus.Logger {
	log := logrus.New()
	log.SetOutput(out)
	log.SetLevel(logrus.DebugLevel)
	return log
}

// serve answers requests over TLS with a source, at 127.0.0.1.
func serve(t *testing.T, s *certs.Source, log io.Writer) (*certs.Listener, string) {
	t.Helper()
	ln := testkit.Listen(t)
	l := s.Listen(ln, logger(log))
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return l, ln.Addr().String()
}

// ask opens a connection and sends one request.
func ask(t *testing.T, s *certs.Source, address string) (net.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	nc, err := certs.DialTLS((&net.Dialer{}).DialContext, s.Client, time.Minute)(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = nc.Close() })
	return nc, say(nc)
}

func say(nc net.Conn) error {
	if _, err := io.WriteString(nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		return err
	}
	buf := make([]byte, 4<<10)
	n, err := nc.Read(buf)
	if err == nil && !strings.Contains(string(buf[:n]), "200 OK") {
		err = errors.New(string(buf[:n]))
	}
	return err
}

// The side that refuses reports the reason; the other side reports as much of it as TLS transmits.
func TestRefusals(t *testing.T) {
	t.Parallel()
	ours, theirs := testkit.NewAuthority(t, "ours"), testkit.NewAuthority(t, "theirs")
	local := testkit.Certificate{CN: "server", Hosts: []string{"127.0.0.1"}}
	old := testkit.Certificate{CN: "old", Hosts: []string{"127.0.0.1"}, From: -2 * time.Hour, Until: -time.Hour}
	issue := func(a *testkit.Authority, name string, c testkit.Certificate, ca string) certs.Files {
		f := certs.Files{CA: ca}
		f.Cert, f.Key = a.Issue(name, c)
		return f
	}
	good := issue(ours, "server", local, "")
	mutual := good
	mutual.CA = ours.CA
	trusts := certs.Files{CA: ours.CA}
	for _, tc := range []struct {
		name           string
		server, client certs.Files
		reason         certs.Reason // at the client; "" if accepted
		text           string       // part of the client's error
		counted        certs.Reason // at the server
		log            string
	}{
		{name: "all is well", server: good, client: trusts},
		{name: "both show certificates", server: mutual, client: issue(ours, "client", testkit.Certificate{CN: "client"}, ours.CA)},
		{
			name: "wrong name", server: issue(ours, "elsewhere", testkit.Certificate{CN: "elsewhere", Hosts: []string{"engine-7"}}, ""), client: trusts,
			reason: certs.WrongName, text: "its certificate is for another name: cannot validate certificate for 127.0.0.1",
			counted: certs.BadCertificate, log: "bad certificate",
		},
		{
			name: "expired", server: issue(ours, "old", old, ""), client: trusts,
			reason: certs.Expired, text: "its certificate has expired at ", counted: certs.BadCertificate, log: "bad certificate",
		},
		{
			name: "not valid yet", server: issue(ours, "new", testkit.Certificate{Hosts: local.Hosts, From: time.Hour}, ""), client: trusts,
			reason: certs.Expired, text: "its certificate is not valid before ", counted: certs.BadCertificate, log: "bad certificate",
		},
		{
			name: "unknown authority", server: issue(theirs, "server", local, ""), client: trusts,
			reason: certs.UnknownAuthority, text: `its certificate is signed by an unknown authority ("CN=theirs")`,
			counted: certs.BadCertificate, log: "bad certificate",
		},
		{
			name: "no client certificate", server: mutual, client: trusts,
			reason: certs.NoCertificate, text: "it requires a client certificate, and got none", counted: certs.NoCertificate, log: "it sent no certificate",
		},
		{
			name: "client certificate of another authority", server: mutual, client: issue(theirs, "client", testkit.Certificate{CN: "client"}, ours.CA),
			reason: certs.UnknownAuthority, text: "it rejected our certificate: signed by an authority that it does not know",
			counted: certs.UnknownAuthority, log: `its certificate is signed by an unknown authority (\"CN=theirs\")`,
		},
		{
			name: "expired client certificate", server: mutual, client: issue(ours, "client-old", old, ours.CA),
			reason: certs.Expired, text: "it rejected our certificate: expired or revoked",
			counted: certs.Expired, log: "its certificate has expired at ",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var log testkit.Buffer
			l, address := serve(t, open(t, tc.server, nil), &log)
			_, err := ask(t, open(t, tc.client, nil), address)
			if tc.reason == "" {
				require.NoError(t, err, &log)
				require.Len(t, l.RefusedCounts(), 0, &log)
				return
			}
			var e *certs.Error
			assert.True(t, errors.As(err, &e) && e.Reason == tc.reason && strings.Contains(e.Text, tc.text),
				"the client says %v, want %s: %s", err, tc.reason, tc.text)
			testkit.Eventually(t, time.Minute, func() error {
				if l.RefusedCounts()[tc.counted] != 1 || !strings.Contains(log.String(), tc.log) {
					return errors.New(log.String())
				}
				return nil
			})
		})
	}
}

// A client without TLS gets instructions, and so does a TLS client at a port without TLS.
func TestWithoutTLS(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t, "ours")
	var f certs.Files
	f.Cert, f.Key = a.Issue("server", testkit.Certificate{Hosts: []string{"127.0.0.1"}})
	var log testkit.Buffer
	l, address := serve(t, open(t, f, nil), &log)
	for path, body := range map[string]string{"/v1/models": "", "/v1/completions": strings.Repeat("x", 64<<10)} {
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		resp, err := testkit.Ask(t.Context(), http.DefaultClient, method, "http://"+address+path, body)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "use https://") {
			t.Errorf("%s: %d %s, %v", path, resp.StatusCode, text, err)
		}
	}
	assert.True(t, l.RefusedCounts()[certs.NoTLS] == 2, "%v\n%s", l.RefusedCounts(), &log)

	ln := testkit.Listen(t)
	srv := &http.Server{Handler: http.NotFoundHandler()}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	defer func() { _ = srv.Close(); <-done }()
	_, err := ask(t, open(t, certs.Files{CA: a.CA}, nil), ln.Addr().String())
	var e *certs.Error
	assert.True(t, errors.As(err, &e) && e.Reason == certs.NoTLS && strings.Contains(e.Text, "use http://"), "%v", err)
}

// New files are used for new connections; open connections continue.
// Unusable files change nothing, and are reported until they are usable.
func TestReload(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t, "ours")
	issue := func(cn string, until time.Duration) (f certs.Files) {
		f.Cert, f.Key = a.Issue("server", testkit.Certificate{CN: cn, Hosts: []string{"127.0.0.1"}, Until: until, From: -24 * time.Hour})
		return f
	}
	var log testkit.Buffer
	f := issue("first", 30*24*time.Hour)
	s := open(t, f, &log)
	_, address := serve(t, s, &log)
	client := open(t, certs.Files{CA: a.CA}, nil)
	shown := func(nc net.Conn) string {
		t.Helper()
		return nc.(interface{ ConnectionState() tls.ConnectionState }).ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	first, err := ask(t, client, address)
	require.NoError(t, err)
	require.Equal(t, "first", shown(first))
	step := func(what, want, finding string, reloads int64) {
		t.Helper()
		s.Check()
		s.Check() // the second call loads changed files
		nc, err := ask(t, client, address)
		require.NoError(t, err)
		require.Equal(t, want, shown(nc))
		require.NoError(t, say(first), "%s: the first connection", what)
		st := s.Status()
		if text := st.Finding(time.Now()); st.Reloads != reloads || (text != "") != (finding != "") || !strings.Contains(text, finding) {
			t.Errorf("%s: %d reloads, %q", what, st.Reloads, text)
		}
	}
	step("nothing new", "first", "", 0)
	issue("second", 30*24*time.Hour)
	step("rolled", "second", "", 1)
	testkit.WriteFile(t, f.Cert, "no certificate")
	step("broken", "second", "cannot be used, and the old ones stay active: "+f.Cert, 1)
	require.NoError(t, os.Remove(f.Cert))
	step("deleted", "second", "no such file", 1)
	issue("cut off", 30*24*time.Hour)
	testkit.WriteFile(t, f.Cert, string(testkit.ReadFile(t, f.Cert))+"-----BEGIN CERTIFICATE-----\nMIIB")
	step("cut off", "second", "1 of 2 PEM blocks", 1)
	issue("expired", -time.Hour)
	step("expired", "second", "the new certificate has expired", 1)
	issue("third", 24*time.Hour)
	step("mended", "third", "the certificate for clients expires at ", 2)
	n := strings.Count(log.String(), "the old ones stay active")
	assert.Equal(t, 4, n, "said %d times:\n%s", n, &log)
}

// A partially written file does not become active: with half of
// the authorities, clients of the others would be refused.
func TestReload_PartiallyWrittenFile(t *testing.T) {
	t.Parallel()
	old, ours := testkit.NewAuthority(t, "old"), testkit.NewAuthority(t, "ours")
	both := testkit.Certificate{CN: "server", Hosts: []string{"127.0.0.1"}}
	server := certs.Files{CA: filepath.Join(t.TempDir(), "bundle.pem")}
	server.Cert, server.Key = ours.Issue("server", both)
	bundle := testkit.ReadFile(t, old.CA)
	second := testkit.ReadFile(t, ours.CA)
	write := func(text []byte) {
		t.Helper()
		testkit.WriteFile(t, server.CA, string(text))
	}
	write(second)
	s := open(t, server, nil)
	_, address := serve(t, s, io.Discard)
	client := certs.Files{CA: ours.CA}
	client.Cert, client.Key = ours.Issue("client", testkit.Certificate{CN: "client"})
	bundle = append(bundle, second...)
	for _, n := range []int{0, 10, len(bundle) - len(second), len(bundle) - 10} {
		write(bundle[:n])
		s.Check()
		if _, err := ask(t, open(t, client, nil), address); err != nil || s.Status().Problem != "" {
			t.Fatalf("after %d of %d bytes: %v, %q", n, len(bundle), err, s.Status().Problem)
		}
	}
	write(bundle)
	s.Check()
	s.Check()
	client.Cert, client.Key = old.Issue("client", testkit.Certificate{CN: "client"})
	_, err := ask(t, open(t, client, nil), address)
	assert.True(t, err == nil && s.Status().Reloads == 1, "written: %v, %+v", err, s.Status())
}

// An unusable file at the start is an error that names the file.
func TestUnusableFiles(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t, "ours")
	cert, key := a.Issue("one", testkit.Certificate{})
	_, other := a.Issue("other", testkit.Certificate{})
	half := func(first, second string) string { // the second certificate is truncated
		path := filepath.Join(t.TempDir(), "half.pem")
		text := string(testkit.ReadFile(t, second))
		testkit.WriteFile(t, path, string(testkit.ReadFile(t, first))+text[:len(text)/2])
		return path
	}
	for name, f := range map[string]certs.Files{
		"no file":       {Cert: cert + ".not", Key: key},
		"another's key": {Cert: cert, Key: other},
		"no authority":  {CA: key},
		"half a chain":  {Cert: half(cert, a.CA), Key: key},
		"half a bundle": {CA: half(a.CA, cert)},
	} {
		_, err := certs.Open(certs.Options{Files: f})
		assert.True(t, err != nil && strings.Contains(err.Error(), ".pem"), "%s: %v", name, err)
	}
}

// Files that no peer accepts, or that accept no peer, do not replace others.
// They are reported if present at the start. One valid authority is enough.
func TestReload_InvalidFiles(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t, "ours")
	expired, _ := a.Issue("expired", testkit.Certificate{CN: "expired", From: -2 * time.Hour, Until: -time.Hour})
	later, laterKey := a.Issue("later", testkit.Certificate{CN: "later", From: time.Hour})
	good, past, future := string(testkit.ReadFile(t, a.CA)), string(testkit.ReadFile(t, expired)), string(testkit.ReadFile(t, later))
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	for _, tc := range []struct {
		name  string
		files certs.Files
		text  string // of the finding and in the log
	}{
		{"a certificate of later", certs.Files{Cert: later, Key: laterKey}, "the certificate for clients is not valid before "},
		{"an expired authority", certs.Files{CA: expired}, "the CA certificate for clients has expired at "},
		{"an authority of later", certs.Files{CA: later}, "the CA certificate for clients is not valid before "},
	} {
		var log testkit.Buffer
		s := open(t, tc.files, &log)
		why := s.Status().Finding(time.Now())
		_, reason, _ := strings.Cut(tc.text, " for clients ")
		if !strings.Contains(why, tc.text) || !strings.Contains(why, ".pem") || !strings.Contains(log.String(), reason) {
			t.Errorf("%s: %q\n%s", tc.name, why, &log)
		}
	}
	ending, _ := a.Issue("ending", testkit.Certificate{CN: "ending", Until: time.Hour})
	if why := open(t, certs.Files{CA: ending}, nil).Status().Finding(time.Now()); !strings.Contains(why, "the CA certificate for clients expires at ") {
		t.Errorf("an authority that ends: %q", why)
	}
	testkit.WriteFile(t, bundle, good)
	s := open(t, certs.Files{CA: bundle}, nil)
	for _, tc := range []struct {
		content, problem string
		reloads          int64
	}{
		{past, bundle + ": unusable: the new CA certificate has expired at ", 0},
		{future + past, bundle + ": unusable: the new CA certificate ", 0},
		{past + good, "", 1},
		{future + good + past, "", 2},
	} {
		testkit.WriteFile(t, bundle, tc.content)
		s.Check()
		s.Check()
		st := s.Status()
		if st.Reloads != tc.reloads || (st.Problem == "") != (tc.problem == "") || !strings.HasPrefix(st.Problem, tc.problem) || (st.Finding(time.Now()) == "") != (tc.problem == "") {
			t.Errorf("%d reloads, %q, %q", st.Reloads, st.Problem, st.Finding(time.Now()))
		}
	}
}

// An error about a host with tls in its name is not reported as a TLS error.
func TestRefused_HostName(t *testing.T) {
	t.Parallel()
	err := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "prefill-tls", IsNotFound: true}}
	reason, text, ok := certs.Refused(err)
	assert.False(t, ok, "%s: %s", reason, text)
}
