package lmcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Path is the route on which an agent serves proxies.
const Path = "/lmcache/notified"

// Handler returns the handler with which an agent serves an inbox to proxies:
//
//	GET /lmcache/notified?req_id=<id>&ranks=<n>
//
// The response header is sent immediately, and the body, "notified", when that number of
// ranks has notified. A response that ends without it means that the notification is lost. Only the
// proxy limits the wait: a long queue of prefill may take longer than any limit here.
func Handler(inbox *Inbox) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		id := q.Get("req_id")
		ranks, err := strconv.Atoi(q.Get("ranks"))
		if err != nil || ranks < 1 || ranks > maxRanks || id == "" || len(id) > maxID {
			http.Error(w, "missing or invalid req_id or ranks: ranks must be a number from 1 to "+strconv.Itoa(maxRanks), http.StatusBadRequest)
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return // the proxy has left
		}
		if inbox.Await(r.Context(), id, ranks) != nil {
			panic(http.ErrAbortHandler) // a clean end would look like an answer
		}
		_, _ = io.WriteString(w, notified) // an error means that the proxy has left
	})
	return mux
}

const notified = "notified"

// The errors of Await.
var (
	// ErrNoReceiver means that no agent and no proxy receives the notifications of a prefill instance.
	ErrNoReceiver = errors.New("its record names no lmcache_notify port, and this proxy receives no notifications (--lmcache-notify)")
	// ErrLost means that the receiver of the notifications has ended, or does not know the request.
	ErrLost = errors.New("LMCache's notifications cannot be received")
)

// Waiter waits for notifications at the agents that receive them.
type Waiter struct {
	// Own is the inbox of this proxy, for prefill instances without an agent that receives; nil if there is
	// none. OwnAddress is the address of its socket.
	Own        *Inbox
	OwnAddress string
	// HTTP is the client for requests to agents.
	HTTP *http.Client
}

// CannotReceive returns the reason why the proxy cannot wait for an instance's notifications; nil if it can.
func (a *Waiter) CannotReceive(in *instance.Instance) error {
	if a.Own == nil && len(in.Record.Ports[instance.PortLMCacheNotify]) == 0 {
		return ErrNoReceiver
	}
	return nil
}

// Address returns the address at which the notifications of an instance are expected, for messages.
func (a *Waiter) Address(in *instance.Instance) string {
	ports := in.Record.Ports
	host, _, _ := net.SplitHostPort(in.Address)
	switch {
	case len(ports[instance.PortLMCacheNotify]) == 0:
		return a.OwnAddress + " of the proxy (--lmcache-notify)"
	case len(ports[instance.PortLMCachePull]) == 0:
		return "the agent on " + host + " (--lmcache-notify)"
	}
	return fmt.Sprintf("port %d of the agent on %s (--lmcache-notify)", ports[instance.PortLMCachePull][0], host)
}

// Await blocks until the given number of ranks of a prefill instance has notified for an id. The
// error is ctx's cause, or wraps ErrNoReceiver or ErrLost.
func (a *Waiter) Await(ctx context.Context, in *instance.Instance, id string, ranks int) error {
	ports := in.Record.Ports[instance.PortLMCacheNotify]
	switch {
	case len(ports) > 0:
		return a.ask(ctx, in, ports[0], ranks, id)
	case a.Own != nil:
		return a.Own.Await(ctx, id, ranks)
	}
	return ErrNoReceiver
}

func (a *Waiter) ask(ctx context.Context, in *instance.Instance, port, ranks int, id string) error {
	host, _, err := net.SplitHostPort(in.Address)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(host, strconv.Itoa(port)), Path: Path,
		RawQuery: url.Values{"req_id": {id}, "ranks": {strconv.Itoa(ranks)}}.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	resp, err := a.HTTP.Do(req)
	if err != nil {
		return lost(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: the agent at %s answers %s", ErrLost, u.Host, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64))
	if err == nil && string(text) != notified {
		err = io.ErrUnexpectedEOF
	}
	return lost(ctx, err)
}

// lost returns the cause of ctx if the wait was canceled, and wraps any other error in ErrLost.
func lost(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}
