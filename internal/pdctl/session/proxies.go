package session

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// DefaultConnector returns the connector that all proxies assume for records that name none,
// or "" if they differ or do not publish it.
func DefaultConnector(proxies []lease.ProxyPresence) string {
	if len(proxies) == 0 || slices.ContainsFunc(proxies, func(p lease.ProxyPresence) bool { return p.Connector != proxies[0].Connector }) {
		return ""
	}
	return proxies[0].Connector
}

// AdminKey returns the admin key of proxies: the value of a flag, or of ADMIN_API_KEY.
func (s *Session) AdminKey(flag string) (string, error) {
	if flag == "" {
		flag, _ = s.LookupEnv("ADMIN_API_KEY")
	}
	if flag == "" {
		return "", cli.Wrongf("this command needs the admin key with which the proxies were started: set --admin-key or ADMIN_API_KEY")
	}
	return flag, nil
}

// ProxyURLs returns the admin URLs of the registered proxies, at least one if err is nil. The error
// names those without one; urls has the others.
func (s *Session) ProxyURLs(ctx context.Context) (urls []string, err error) {
	err = s.With(ctx, func(conn *Conn) error {
		proxies, err := conn.Store.Reader.Proxies(ctx)
		if err != nil {
			return s.Hint(err)
		}
		var unknown []error
		for i := range proxies {
			if u, err := proxies[i].BaseURL(); err != nil {
				unknown = append(unknown, fmt.Errorf("%w: name it by --proxy URL", err))
			} else {
				urls = append(urls, u)
			}
		}
		return errors.Join(unknown...)
	})
	if err == nil && len(urls) == 0 {
		err = errors.New("no proxy is registered in etcd: name one by --proxy URL")
	}
	return urls, err
}

// Proxies holds the TLS files for requests to proxies.
type Proxies struct{ Files certs.Files }

func (p *Proxies) settings() settings.Table {
	return settings.About("Proxies",
		settings.Setting{Name: "proxy-ca", Kind: settings.Text, Usage: "for proxies with https: PEM file of the CAs of their certificates (default: the system's CAs)", Into: &p.Files.CA},
		settings.Setting{Name: "proxy-cert", Kind: settings.Text, Usage: "for proxies with --tls-client-ca: PEM file of the client certificate", Into: &p.Files.Cert},
		settings.Setting{Name: "proxy-key", Kind: settings.Text, Usage: "PEM file of the key of --proxy-cert", Into: &p.Files.Key},
	)
}

// Client returns an HTTP client with these files, which follows no redirects.
func (p *Proxies) Client() (*http.Client, error) {
	if (p.Files.Cert == "") != (p.Files.Key == "") {
		return nil, cli.Wrongf("set --proxy-cert and --proxy-key together")
	}
	source, err := certs.Open(certs.Options{Use: certs.UseProxies, Files: p.Files})
	if err != nil {
		return nil, cli.Wrongf("certificates for proxies: %w", err)
	}
	return &http.Client{
		Transport:     explainer{&http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: source.Client()}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// explainer explains TLS errors, and names the flags that fix them.
type explainer struct{ *http.Transport }

// RoundTrip implements http.RoundTripper.
func (e explainer) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := e.Transport.RoundTrip(req)
	reason, text, ok := certs.Refused(err)
	switch {
	case !ok:
		return resp, err
	case reason == certs.NoCertificate, strings.HasPrefix(text, "it rejected our certificate"):
		text += ": set --proxy-cert and --proxy-key to a certificate of the CA in its --tls-client-ca"
	case reason == certs.UnknownAuthority:
		text += ": name its CA with --proxy-ca"
	case reason == certs.WrongName:
		text += ": name it by --proxy https://HOST:PORT with a host of its certificate"
	}
	return nil, &certs.Error{Reason: reason, Text: text, Err: err}
}

// maxProxyAnswer bounds the answer of a proxy, in bytes. An instance may take some hundred.
const maxProxyAnswer = 64 << 20

// AskProxy sends a request to a route of a proxy and returns the answer; a status other than 200 is an
// error. base is the URL of the proxy, query may be nil; a request without a body is a GET.
func (s *Session) AskProxy(ctx context.Context, base, path string, query url.Values, header http.Header, body []byte) ([]byte, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, cli.Wrongf("--proxy %q: must be a URL such as http://10.0.0.1:8000", instance.Printable(base, 200))
	}
	u = u.JoinPath(path)
	u.RawQuery = query.Encode()
	ctx, cancel := context.WithTimeout(ctx, 5*s.Timeout)
	defer cancel()
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
		header.Set("Content-Type", "application/json")
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = header
	client, err := s.Proxies.Client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	refused, _ := errors.AsType[*certs.Error](err)
	switch {
	case refused != nil && refused.Reason == certs.NoCertificate:
		return nil, fmt.Errorf("the proxy requires a client certificate (--tls-client-ca): set --proxy-cert and --proxy-key: %w", err)
	case err != nil:
		return nil, fmt.Errorf("the proxy does not answer: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxProxyAnswer))
	if err != nil {
		return nil, fmt.Errorf("the proxy's answer ended early: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the proxy answered %d: %s", resp.StatusCode, instance.Printable(errorMessage(raw), 500))
		if resp.StatusCode == http.StatusNotFound {
			err = fmt.Errorf("%w; one of an older release has no %s, and one with --admin-listen has it there only", err, path)
		}
		return nil, err
	}
	return raw, nil
}

// errorMessage returns the message of an error answer, or the whole answer if it has none.
func errorMessage(raw []byte) string {
	var body struct {
		Error  struct{ Message string }
		Detail string
	}
	if json.Unmarshal(raw, &body) != nil {
		return string(raw)
	}
	return cmp.Or(body.Error.Message, body.Detail, string(raw))
}

// ReadsProxy adds the flag --proxy to a command that can read the fleet from a proxy.
func (s *Session) ReadsProxy(cmd *cobra.Command) *cobra.Command {
	annotate(cmd, readsProxy)
	cmd.Flags().StringVar(&s.Proxy, "proxy", "", "read the fleet from the proxy with this URL (or that of its --admin-listen) instead of etcd, for example while etcd is down")
	return cmd
}

// readsProxy is the annotation of commands with the flag --proxy of ReadsProxy.
const readsProxy = "proxy"

// proxyHint is part of the error of a command with --proxy when etcd does not answer.
const proxyHint = "\nWhile etcd is down, a proxy still knows the fleet: repeat the command with --proxy http://HOST:PORT."

// ProxyStatus is the part of a proxy's /status that pdctl shows.
type ProxyStatus struct {
	Instances []instance.Listing `json:"instances"`
	Notices   []string           `json:"notices"`
	Revision  int64              `json:"revision"`
	ID        string             `json:"id"`
	Version   string             `json:"version"`
	// ModelRoutes has the requests that this proxy has counted.
	ModelRoutes []instance.ListedModelRoute `json:"model_routes"`

	Etcd struct {
		State       string `json:"state"`
		LastContact string `json:"last_contact"`
		LastError   string `json:"last_error"`
	} `json:"etcd"`
}

// Statuses returns the /status of each proxy, or the error of one without a URL and of one that
// does not answer within the timeout.
func (s *Session) Statuses(ctx context.Context, proxies []lease.ProxyPresence) ([]*ProxyStatus, []error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	all, errs := make([]*ProxyStatus, len(proxies)), make([]error, len(proxies))
	var work sync.WaitGroup
	for i := range proxies {
		work.Go(func() {
			var u string
			if u, errs[i] = proxies[i].BaseURL(); errs[i] == nil {
				all[i], errs[i] = s.StatusOf(ctx, u)
			}
		})
	}
	work.Wait()
	return all, errs
}

// StatusOf returns the /status of the proxy with this URL.
func (s *Session) StatusOf(ctx context.Context, base string) (*ProxyStatus, error) {
	raw, err := s.AskProxy(ctx, base, "/status", nil, nil, nil)
	if err != nil {
		return nil, err
	}
	st := &ProxyStatus{}
	if err := json.Unmarshal(raw, st); err != nil || st.ID == "" {
		return nil, fmt.Errorf("%s does not answer as a proxy of this version: %s", instance.Printable(base, 200), instance.Printable(string(raw), 200))
	}
	return st, nil
}
