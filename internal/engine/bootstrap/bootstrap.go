// Package bootstrap queries the bootstrap server of a Mooncake prefill engine for its engine ids.
//
// vLLM's MooncakeConnector runs that server inside the producer, on a separate port. A decode leg
// must contain the engine id, which changes with each start of the engine. The answer is that of
// vLLM 0.16 and later:
//
//	GET /query  {"0":{"engine_id":"…","worker_addr":{"0":{"0":"tcp://…"}}}}
package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Errors of Query; test with errors.Is.
var (
	// ErrEmpty: the server runs, and no worker of the engine has registered yet.
	ErrEmpty = errors.New("no worker has registered yet")
	// ErrForm: the answer is not that of a bootstrap server.
	ErrForm = errors.New("not the answer of a Mooncake bootstrap server")
)

// Bounds of an answer.
const (
	maxBytes   = 1 << 20
	maxRanks   = 1024
	maxIDBytes = 256
)

// timeout bounds a call whose context has no deadline.
const timeout = 2 * time.Second

// entry is the answer for one rank; other members are for the engines.
type entry struct {
	EngineID   string                       `json:"engine_id"`
	WorkerAddr map[string]map[string]string `json:"worker_addr"`
}

// Query queries the server at address, host:port, and returns the engine ids by data-parallel rank,
// in the form of Record.EngineIDs. It uses c, whose dialer decides which addresses may be reached;
// nil means a new connection. Redirects are not followed.
func Query(ctx context.Context, c *http.Client, address string) (map[string]string, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	ids, err := query(ctx, c, address)
	if err != nil {
		return nil, fmt.Errorf("bootstrap server %s: %w", instance.Printable(address, 120), err)
	}
	return ids, nil
}

func query(ctx context.Context, c *http.Client, address string) (map[string]string, error) {
	canonical, err := instance.ParseAddress(address)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+canonical+"/query", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set(instance.ProbeHeader, "1")
	resp, err := client(c).Do(req)
	if err != nil {
		return nil, errors.Unwrap(err) // without the URL, which repeats the address
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBytes+1))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%w: status %d: %s", ErrForm, resp.StatusCode, instance.Printable(string(bytes.TrimSpace(body)), 80))
	case len(body) > maxBytes:
		return nil, fmt.Errorf("%w: more than %d bytes", ErrForm, maxBytes)
	}
	return parse(body)
}

func client(c *http.Client) *http.Client {
	out := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if c != nil {
		out = *c
	}
	out.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &out
}

func parse(body []byte) (map[string]string, error) {
	var ranks map[string]entry
	if err := json.Unmarshal(body, &ranks); err != nil || ranks == nil {
		return nil, fmt.Errorf("%w: %s", ErrForm, instance.Printable(string(bytes.TrimSpace(body)), 80))
	}
	switch {
	case len(ranks) == 0:
		return nil, ErrEmpty
	case len(ranks) > maxRanks:
		return nil, fmt.Errorf("%w: more than %d ranks", ErrForm, maxRanks)
	}
	ids := make(map[string]string, len(ranks))
	for rank, e := range ranks {
		if n, err := strconv.Atoi(rank); err != nil || n < 0 || strconv.Itoa(n) != rank {
			return nil, fmt.Errorf("%w: %q is not a data-parallel rank: vLLM before 0.16 answers by engine id, which is not supported",
				ErrForm, instance.Printable(rank, 60))
		}
		if e.EngineID == "" || len(e.EngineID) > maxIDBytes || instance.Printable(e.EngineID, 0) != e.EngineID {
			return nil, fmt.Errorf("%w: rank %s has no usable engine_id", ErrForm, rank)
		}
		ids[rank] = e.EngineID
	}
	return ids, nil
}
