package connector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// bootstrap is the registry inside a Mooncake producer, where a decode engine and a proxy find
// the engine id and the side channel:
//
//	GET /query  {"0":{"engine_id":"…","worker_addr":{"0":{"0":"tcp://…"}}}}
type bootstrap struct {
	ln      net.Listener
	http    *http.Server
	serving sync.WaitGroup
}

// startBootstrap starts the registry of an engine; queried is called for each query.
func startBootstrap(ctx context.Context, addr, engineID, side string, queried func()) (*bootstrap, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("bootstrap server on %s: %w", addr, err)
	}
	body := jsontext.Append(nil, `{"0":{"engine_id":$,"worker_addr":{"0":{"0":$}}}}`, engineID, "tcp://"+side)
	b := &bootstrap{ln: ln}
	b.http = &http.Server{
		MaxHeaderBytes: 64 << 10, ReadHeaderTimeout: 10 * time.Second, ErrorLog: stdlog.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Server", "uvicorn")
			switch {
			case r.URL.Path != "/query":
				pydantic.WriteDetail(w, http.StatusNotFound, "Not Found")
			case r.Method != http.MethodGet:
				w.Header().Set("Allow", http.MethodGet)
				pydantic.WriteDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
			default:
				queried()
				pydantic.WriteJSON(w, http.StatusOK, body)
			}
		}),
	}
	b.serving.Go(func() { _ = b.http.Serve(ln) })
	return b, nil
}

func (b *bootstrap) close() {
	_ = b.http.Close()
	b.serving.Wait()
}

// peers are the side channels of the prefill engines that a decode engine knows, by engine id.
type peers struct{ sync.Map }

// find returns the side channel of an engine. It queries the bootstrap server at base for an
// engine that is not known, up to three times while that cannot be reached.
func (p *peers) find(ctx context.Context, engineID, base string) (string, error) {
	var err error
	for n := 0; ; n++ {
		if addr, ok := p.Load(engineID); ok {
			return addr.(string), nil //nolint:forcetypeassert // of query
		}
		_, lost := errors.AsType[*url.Error](err)
		switch {
		case n > 2, n > 0 && !lost, ctx.Err() != nil:
			return "", errors.Join(fmt.Errorf("remote engine_id %s not found from bootstrap server %s", engineID, base), err)
		case n > 0:
			sleep.For(ctx, 100*time.Millisecond)
		}
		err = p.query(ctx, base)
	}
}

// query learns every engine that a bootstrap server names.
func (p *peers) query(ctx context.Context, base string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/query", nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("bootstrap server: %s", resp.Status)
	}
	var ranks map[string]struct {
		EngineID   string                       `json:"engine_id"`
		WorkerAddr map[string]map[string]string `json:"worker_addr"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&ranks); err != nil {
		return err
	}
	for _, r := range ranks {
		p.Store(r.EngineID, strings.TrimPrefix(r.WorkerAddr["0"]["0"], "tcp://"))
	}
	return nil
}
