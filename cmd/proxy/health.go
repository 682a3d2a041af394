package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// healthTimeout bounds the whole question: container health checks are asked
// every few seconds.
const healthTimeout = 3 * time.Second

// errUnhealthy is what a proxy says of itself.
var errUnhealthy = errors.New("not ready")

// healthCommand asks a running proxy how it is. It takes the proxy's own
// settings, so that it looks where the proxy listens.
func healthCommand(env func(string) (string, bool)) *cobra.Command {
	var live bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "exit 0 if the proxy that runs here is ready",
		Long: `health is for container health checks (no shell is needed) and scripts: one line, exit
0 while the proxy answers /readyz with 200 (or /livez, with --live), 1 with the reason
otherwise, after three seconds at most. It looks where the settings say that the proxy
listens: host, port and certificate by flag, environment or file, as for the proxy itself.
Over TLS it shows the proxy's own certificate, which must be good for clients too where
--tls-client-ca is given.`,
		Example: `  proxy health
  proxy health --port 9000 --live`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unexpected argument %q", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := config.LoadListen(cmd.Flags(), env)
			if err != nil {
				return usageError{err}
			}
			path := "/readyz"
			if live {
				path = "/livez"
			}
			answer, err := askHealth(cmd.Context(), at, path)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintln(cmd.OutOrStdout(), answer)
			return nil
		},
	}
	config.RegisterProxyFlags(cmd.Flags())
	cmd.Flags().BoolVar(&live, "live", false, "ask whether the process lives, not whether it is ready to serve")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	return cmd
}

// localAddress is where this machine reaches what listens on host.
func localAddress(host string, port int) string {
	switch ip, err := netip.ParseAddr(host); {
	case host == "", err == nil && ip.IsUnspecified() && ip.Is4():
		host = "127.0.0.1"
	case err == nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// selfClient speaks to the proxy of this machine. It does not look at the certificate, which
// need not name the address that is asked: nothing secret is sent.
func selfClient(at config.Listen) (hc *http.Client, scheme string, err error) {
	t := &http.Transport{DisableKeepAlives: true} // no HTTP proxy from the environment
	if at.TLSCert == "" {
		return &http.Client{Transport: t}, "http", nil
	}
	pair, err := tls.LoadX509KeyPair(at.TLSCert, at.TLSKey)
	if err != nil {
		return nil, "", err
	}
	t.TLSClientConfig = &tls.Config{
		InsecureSkipVerify:   true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	}
	return &http.Client{Transport: t}, "https", nil
}

func askHealth(ctx context.Context, at config.Listen, path string) (string, error) {
	address := localAddress(at.Host, at.Port)
	hc, scheme, err := selfClient(at)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+path, nil)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", address, err)
	}
	resp, err := hc.Do(req)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "", fmt.Errorf("no answer from %s within %s", address, healthTimeout)
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
		return "", fmt.Errorf("%w: %s", errUnhealthy, instance.Printable(body.Reason, 400))
	}
	return "", fmt.Errorf("%w: %s answers %s: is it a proxy?", errUnhealthy, address, resp.Status)
}
