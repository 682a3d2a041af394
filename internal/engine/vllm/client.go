package vllm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// DefaultTimeout bounds one call, from its first packet to the last byte of its body, if the context
// has no deadline.
const DefaultTimeout = 2 * time.Second

// Bounds of the bodies that are read, in bytes. A longer one is an error, except for
// /v1/models, whose rest is left unread: a list that is too long is no fault of the engine.
const (
	maxModelsBytes  = 16 << 20
	maxMetricsBytes = 8 << 20
	maxSmallBytes   = 64 << 10
)

// Client reads the side endpoints of engines. It has no state and is safe for concurrent use; the
// zero value is ready to use.
type Client struct {
	// HTTP makes the calls. Its redirect policy is ignored: redirects are always
	// refused. Nil means a fresh connection per call, without any HTTP proxy from
	// the environment.
	HTTP *http.Client
	// APIKey goes to /v1 paths as "Authorization: Bearer"; empty sends none.
	APIKey string
	// Timeout bounds each call; 0 leaves that to the caller's deadline.
	Timeout time.Duration
}

// SecureTransport returns a transport for calls to engines, also over TLS. config returns the TLS
// configuration of a new connection; nil means the system's authorities.
func SecureTransport(config func() *tls.Config) *http.Transport {
	dial := (&net.Dialer{Timeout: maxDial}).DialContext
	return &http.Transport{
		DialContext:            dial,
		DialTLSContext:         certs.DialTLS(dial, config, maxDial),
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: maxSmallBytes,
	}
}

// New returns a client that opens a new connection for each call: a probe over an older connection
// would not notice that the engine no longer accepts any. It sets no deadline other than
// DefaultTimeout: only the caller knows how long a busy engine may take.
func New(apiKey string) *Client {
	return &Client{HTTP: &http.Client{Transport: SecureTransport(nil)}, APIKey: apiKey}
}

// maxDial bounds the time to connect, since connecting continues after the end of a call.
const maxDial = time.Minute

// BaseURL returns the base URL of an instance's endpoints.
func BaseURL(in *instance.Instance) string {
	// Use the address of the key, as requests do.
	return cmp.Or(in.Record.Scheme, "http") + "://" + in.Address
}

// Health calls GET /health: 200 with an empty body while the engine runs, 503 when its core has
// died. The path needs no key.
func (c *Client) Health(ctx context.Context, base string) error {
	return c.get(ctx, base, "/health", false, func(r io.Reader) error {
		_, err := io.Copy(io.Discard, io.LimitReader(r, maxSmallBytes))
		return err
	})
}

// Version reads GET /version, {"version":"0.x.y"}. The path needs no key.
func (c *Client) Version(ctx context.Context, base string) (string, error) {
	var v struct {
		Version string `json:"version"`
	}
	if err := c.getJSON(ctx, base, "/version", &v); err != nil {
		return "", err
	}
	return v.Version, nil
}

// Models reads GET /v1/models and fills Models, Roots, MaxModelLen and ModelsTruncated. The
// path needs the key when the engine was started with one.
func (c *Client) Models(ctx context.Context, base string) (instance.Facts, error) {
	var facts instance.Facts
	err := c.get(ctx, base, "/v1/models", true, func(r io.Reader) (err error) {
		facts, err = readModels(r)
		return err
	})
	if err == nil && len(facts.Models) == 0 {
		err = callError(base, "/v1/models", ErrNoModels)
	}
	if err != nil {
		return instance.Facts{}, err
	}
	return facts, nil
}

// Facts reads all facts about an engine: its models, and, if available, its version, its start time,
// its number of ranks and its transfer. Only the models are required.
func (c *Client) Facts(ctx context.Context, base string) (instance.Facts, error) {
	facts, err := c.Models(ctx, base)
	if err != nil {
		return instance.Facts{}, err
	}
	if v, err := c.Version(ctx, base); err == nil {
		facts.Version = v
	}
	if s, err := c.Stats(ctx, base); err == nil {
		s.AddTo(&facts)
	}
	return facts, nil
}

// Probe reads the facts of a registered instance at its address.
func (c *Client) Probe(ctx context.Context, in *instance.Instance) (instance.Facts, error) {
	return c.Facts(ctx, BaseURL(in))
}

// getJSON reads a small answer of a path that needs no key.
func (c *Client) getJSON(ctx context.Context, base, path string, into any) error {
	return c.get(ctx, base, path, false, func(r io.Reader) error {
		body, err := io.ReadAll(io.LimitReader(r, maxSmallBytes+1))
		if err != nil {
			return err
		}
		if len(body) > maxSmallBytes {
			return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, maxSmallBytes)
		}
		if err := json.Unmarshal(body, into); err != nil {
			return fmt.Errorf("%w: %s", ErrNotVLLM, instance.Printable(string(bytes.TrimSpace(body)), 80))
		}
		return nil
	})
}

// get makes one call and passes the body of a 200 to read.
func (c *Client) get(ctx context.Context, base, path string, key bool, read func(io.Reader) error) error {
	req, err := c.request(ctx, http.MethodGet, base, path, nil, key)
	if err != nil {
		return err
	}
	err = c.do(req, base, callTimeout(ctx, c.Timeout), read)
	if refused, ok := errors.AsType[*StatusError](err); ok && refused.Code == http.StatusLoopDetected {
		err = fmt.Errorf("%w: %s %w; use the address of vLLM", ErrNotVLLM, hostOf(base), ErrProxy)
	}
	if err != nil {
		return callError(base, path, err)
	}
	return nil
}

func (c *Client) request(ctx context.Context, method, base, path string, body io.Reader, key bool) (*http.Request, error) {
	u, err := endpoint(base, path)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, fmt.Errorf("%w %q", ErrBase, instance.Printable(base, 80))
	}
	req.Header.Set(instance.ProbeHeader, "1")
	if key && c.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.APIKey)
	}
	return req, nil
}

// do sends a request and passes the body of a 200 to read.
func (c *Client) do(req *http.Request, base string, timeout time.Duration, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(req.Context(), timeout)
	defer cancel()
	resp, err := c.client().Do(req.WithContext(ctx))
	if err == nil {
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
			return &StatusError{
				Code: resp.StatusCode,
				Text: instance.Printable(strings.TrimSpace(string(text)), 120),
				key:  c.APIKey != "",
			}
		}
		err = read(resp.Body)
	}
	if err != nil {
		return explain(req.Context(), ctx, base, timeout, err)
	}
	return nil
}

// callTimeout returns the timeout of one call: limit, or the time to the deadline of ctx if that is
// shorter; DefaultTimeout without either.
func callTimeout(ctx context.Context, limit time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	switch left := time.Until(deadline); {
	case ok && (limit <= 0 || left < limit):
		return left
	case limit <= 0:
		return DefaultTimeout
	}
	return limit
}

// client returns a copy of c.HTTP that follows no redirects: otherwise an engine could redirect the
// key, or the probe, to any host.
func (c *Client) client() *http.Client {
	hc := http.Client{}
	if c.HTTP != nil {
		hc = *c.HTTP
	}
	if hc.Transport == nil {
		hc.Transport = SecureTransport(nil)
	}
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &hc
}

// CheckBase returns an error unless base is a usable engine URL: http or https, a host, no query, no
// credentials.
func CheckBase(base string) error {
	_, err := endpoint(base, "")
	return err
}

func endpoint(base, path string) (string, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil, u.Host == "", u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("%w %q: write http://host:port", ErrBase, instance.Printable(base, 80))
	case u.User != nil:
		return "", fmt.Errorf("%w: it contains credentials; set the key by --engine-api-key", ErrBase)
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("%w %q: no query or fragment", ErrBase, instance.Printable(base, 80))
	}
	return strings.TrimSuffix(u.String(), "/") + path, nil
}

func callError(base, path string, err error) error {
	return fmt.Errorf("GET %s%s: %w", strings.TrimSuffix(base, "/"), path, err)
}

// hostOf returns base without its scheme, for messages.
func hostOf(base string) string {
	if u, err := url.Parse(base); err == nil && u.Host != "" {
		return u.Host
	}
	return base
}
