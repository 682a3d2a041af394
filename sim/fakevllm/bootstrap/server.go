// Package bootstrap is the registry by which Mooncake engines find each other.
package bootstrap

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// Server is the registry inside a Mooncake producer, where a decode
// engine and a proxy find its engine id by rank.
//
//	GET /query      {"0":{"engine_id":"…","worker_addr":{"0":{"0":"tcp://…"}}}}
//	POST /register  {"engine_id","dp_rank","tp_rank","pp_rank","addr"}
type Server struct {
	ln      net.Listener
	http    *http.Server
	asked   func() // is told of each query
	serving sync.WaitGroup

	mu      sync.Mutex // guards workers
	workers map[int]*entry
}

type entry struct {
	EngineID   string                 `json:"engine_id"`
	WorkerAddr map[int]map[int]string `json:"worker_addr"`
}

// registration is the body of POST /register.
type registration struct {
	EngineID string `json:"engine_id"`
	DPRank   int    `json:"dp_rank"`
	TPRank   int    `json:"tp_rank"`
	PPRank   int    `json:"pp_rank"`
	Addr     string `json:"addr"`
}

// The limits on requests to it.
const (
	maxHeaderBytes    = 64 << 10
	readHeaderTimeout = 10 * time.Second
)

// Start brings one up. asked is told of each query.
func Start(ctx context.Context, addr string, asked func()) (*Server, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("bootstrap server on %s: %w", addr, err)
	}
	b := &Server{ln: ln, asked: asked, workers: make(map[int]*entry)}
	b.http = &http.Server{
		Handler: b, MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog: stdlog.New(io.Discard, "", 0),
	}
	b.serving.Go(func() { _ = b.http.Serve(ln) })
	return b, nil
}

// Addr is host:port.
func (b *Server) Addr() string { return b.ln.Addr().String() }

// Port is its port.
func (b *Server) Port() int { return b.ln.Addr().(*net.TCPAddr).Port }

// Close ends it.
func (b *Server) Close() {
	_ = b.http.Close()
	b.serving.Wait()
}

// ServeHTTP answers as FastAPI does.
func (b *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Server", "uvicorn")
	want := map[string]string{"/query": http.MethodGet, "/register": http.MethodPost}[r.URL.Path]
	switch {
	case want == "":
		pydantic.WriteJSON(w, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
	case want != r.Method:
		w.Header().Set("Allow", want)
		pydantic.WriteJSON(w, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
	case want == http.MethodGet:
		b.query(w)
	default:
		b.serveRegister(w, r)
	}
}

func (b *Server) query(w http.ResponseWriter) {
	b.asked()
	b.mu.Lock()
	body, err := json.Marshal(b.workers)
	b.mu.Unlock()
	if err != nil {
		pydantic.WriteJSON(w, http.StatusInternalServerError, []byte(`{"detail":"Internal Server Error"}`))
		return
	}
	pydantic.WriteJSON(w, http.StatusOK, body)
}

func (b *Server) serveRegister(w http.ResponseWriter, r *http.Request) {
	var reg registration
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&reg); err != nil || reg.EngineID == "" || reg.Addr == "" {
		pydantic.WriteJSON(w, http.StatusUnprocessableEntity, []byte(`{"detail":[{"type":"missing","loc":["body"],"msg":"Field required"}]}`))
		return
	}
	if why := b.register(reg); why != "" {
		pydantic.WriteJSON(w, http.StatusBadRequest, append(jsontext.AppendString([]byte(`{"detail":`), why), '}'))
		return
	}
	pydantic.WriteJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
}

// Register notes the engine that it is a part of.
func (b *Server) Register(engineID, addr string) {
	b.register(registration{EngineID: engineID, Addr: addr})
}

// register notes a worker; the answer says what is wrong with it, "" for nothing.
func (b *Server) register(reg registration) (why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.workers[reg.DPRank]
	if e == nil {
		e = &entry{EngineID: reg.EngineID, WorkerAddr: make(map[int]map[int]string)}
		b.workers[reg.DPRank] = e
	}
	if e.EngineID != reg.EngineID {
		return fmt.Sprintf("Engine ID mismatch for dp_rank=%d: expected %s, got %s", reg.DPRank, e.EngineID, reg.EngineID)
	}
	tp := e.WorkerAddr[reg.TPRank]
	if tp == nil {
		tp = make(map[int]string)
		e.WorkerAddr[reg.TPRank] = tp
	}
	if known, ok := tp[reg.PPRank]; ok && known != reg.Addr {
		return fmt.Sprintf("Worker with dp_rank=%d, tp_rank=%d, pp_rank=%d is already registered at %s, but still want to register at %s",
			reg.DPRank, reg.TPRank, reg.PPRank, known, reg.Addr)
	}
	tp[reg.PPRank] = reg.Addr
	return ""
}
