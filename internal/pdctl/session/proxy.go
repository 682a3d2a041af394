package session

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// maxAnswer bounds the answer of a proxy, in bytes.
const maxAnswer = 64 << 20

// ReadsProxy adds the flag --proxy to a command that can read the fleet from a proxy.
func (s *Session) ReadsProxy(cmd *cobra.Command) *cobra.Command {
	annotate(cmd, readsProxy)
	cmd.Flags().StringVar(&s.Proxy, "proxy", "", "read the fleet from the proxy with this URL (or that of its --admin-listen) instead of etcd, for example while etcd is down")
	return cmd
}

// readsProxy is the annotation of these commands.
const readsProxy = "proxy"

// proxyHint is part of the error of a command with --proxy when etcd does not answer.
const proxyHint = "\nWhile etcd is down, a proxy still knows the fleet: repeat the command with --proxy http://HOST:PORT."

// Fetch returns the answer of a proxy to a GET request.
func (s *Session) Fetch(ctx context.Context, proxy, path string, header http.Header) ([]byte, error) {
	base, err := url.Parse(proxy)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, cli.Wrongf("--proxy %q: must be a URL such as http://10.0.0.1:8000", instance.Printable(proxy, 200))
	}
	ctx, cancel := context.WithTimeout(ctx, 5*s.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(path).String(), nil)
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the proxy does not answer: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("the proxy's answer ended early: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s of the proxy: %s: %s", path, resp.Status, instance.Printable(string(raw), 300))
	}
	return raw, nil
}

// ProxyStatus is the part of a proxy's /status that pdctl shows.
type ProxyStatus struct {
	Instances []instance.Listing `json:"instances"`
	Notices   []string           `json:"notices"`
	Revision  int64              `json:"revision"`
	ID        string             `json:"id"`
	Version   string             `json:"version"`
	Etcd      struct {
		State       string `json:"state"`
		LastContact string `json:"last_contact"`
		LastError   string `json:"last_error"`
	} `json:"etcd"`
}

// FromProxy returns the /status of the proxy of --proxy.
func (s *Session) FromProxy(ctx context.Context) (*ProxyStatus, error) {
	raw, err := s.Fetch(ctx, s.Proxy, "/status", nil)
	if err != nil {
		return nil, err
	}
	st := &ProxyStatus{}
	if err := json.Unmarshal(raw, st); err != nil || st.ID == "" {
		return nil, fmt.Errorf("%s is no proxy of this version: %s", instance.Printable(s.Proxy, 200), instance.Printable(string(raw), 200))
	}
	return st, nil
}
