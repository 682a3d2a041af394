// Package selfcheck queries the proxy on this machine, for container health checks.
package selfcheck

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Timeout is the time limit of the check; container health checks run every few seconds.
const Timeout = 3 * time.Second

// ErrUnhealthy is wrapped by the reason that the proxy reports.
var ErrUnhealthy = errors.New("not ready")

// client returns a client for the proxy of this machine. It does not verify the certificate, which may
// lack the local address; nothing secret is sent. asked becomes true if the proxy requests a client
// certificate. The files are read only then, because the proxy may have rejected them.
func client(at config.Listen) (hc *http.Client, scheme string, asked *atomic.Bool) {
	asked = new(atomic.Bool)
	t := &http.Transport{DisableKeepAlives: true} // no HTTP proxy from the environment
	if at.Files.Cert == "" {
		return &http.Client{Transport: t}, "http", asked
	}
	t.TLSClientConfig = &tls.Config{
		InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked.Store(true)
			pair, err := tls.LoadX509KeyPair(at.Files.Cert, at.Files.Key)
			return &pair, err
		},
	}
	return &http.Client{Transport: t}, "https", asked
}

// Ask requests a path of the proxy that listens at an address, and returns a line of text. The
// error is the reason why the proxy is unhealthy.
func Ask(ctx context.Context, at config.Listen, path string) (string, error) {
	address := instance.LocalAddress(at.Host, at.Port)
	hc, scheme, asked := client(at)
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+path, nil)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", address, err)
	}
	resp, err := hc.Do(req)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "", fmt.Errorf("no answer from %s within %s", address, Timeout)
	case err != nil && asked.Load() && path == "/livez": // a restart would not fix certificates
		return "alive", nil
	case err != nil && asked.Load():
		return "", fmt.Errorf("ask %s: %w", address, certs.Explain(errors.Unwrap(err)))
	case err != nil:
		return "", fmt.Errorf("no proxy answers at %s: %w", address, errors.Unwrap(err))
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", address, err)
	}
	var body struct {
		Ready    bool   `json:"ready"`
		Reason   string `json:"reason"`
		Revision int64  `json:"revision"`
		Prefill  int    `json:"prefill_instances"`
		Decode   int    `json:"decode_instances"`
	}
	_ = json.Unmarshal(raw, &body) // /livez has no JSON
	switch {
	case resp.StatusCode == http.StatusOK && body.Ready:
		return fmt.Sprintf("ready, %d prefill and %d decode instances", body.Prefill, body.Decode), nil
	case resp.StatusCode == http.StatusOK && path == "/livez":
		return "alive", nil
	case body.Reason != "":
		return "", fmt.Errorf("%w: %s", ErrUnhealthy, instance.Printable(body.Reason, 400))
	case resp.StatusCode == http.StatusBadRequest && scheme == "http": // from net/http
		return "", fmt.Errorf("%w: %s answers %s: does it use TLS? Set --tls-cert and --tls-key", ErrUnhealthy, address, resp.Status)
	}
	return "", fmt.Errorf("%w: %s answers %s: is it a proxy?", ErrUnhealthy, address, resp.Status)
}
