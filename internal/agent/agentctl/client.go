package agentctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
)

// ErrNoAgent means that no agent answers on the socket.
var ErrNoAgent = errors.New("no agent runs")

const (
	clientTimeout = 3 * time.Second
	drainPoll     = 100 * time.Millisecond
	maxAnswer     = 1 << 20
)

// Client calls one agent through its control socket. Each call is limited to clientTimeout.
type Client struct {
	path string
	http *http.Client
}

// NewClient returns a client for the agent's socket at path; it does not connect yet.
func NewClient(path string) *Client {
	return &Client{path: path, http: &http.Client{
		Timeout: clientTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", path)
			},
		},
	}}
}

// Status returns the state of the agent.
func (c *Client) Status(ctx context.Context) (Report, error) {
	var r Report
	raw, err := c.do(ctx, http.MethodGet, "/status")
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("the agent's status cannot be read: %w", err)
	}
	return r, nil
}

// Metrics returns the agent's metrics as Prometheus text.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	return c.do(ctx, http.MethodGet, "/metrics")
}

// Drain makes the agent drain and exit, as SIGTERM does. It does not wait for the exit.
func (c *Client) Drain(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/drain")
	return err
}

// AwaitEnd waits until the agent with this Report.ID has exited or ctx ends. It compares ids, because
// a successor may open the same socket between two polls.
func (c *Client) AwaitEnd(ctx context.Context, id string) error {
	for {
		if r, err := c.Status(ctx); errors.Is(err, ErrNoAgent) || err == nil && r.ID != id {
			return nil
		}
		if !sleep.For(ctx, drainPoll) {
			return fmt.Errorf("the agent still drains: %w", ctx.Err())
		}
	}
}

func (c *Client) do(ctx context.Context, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w at %s", ErrNoAgent, c.path)
	case err != nil:
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	if resp.StatusCode >= 300 {
		return nil, fmt.Errorf("the agent answers %s", resp.Status)
	}
	return raw, nil
}
