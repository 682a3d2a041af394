package fakevllm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// bootstrapServer is the registry inside a Mooncake producer, where a decode
// engine and a proxy find its engine id by rank.
//
//	GET /query      {"0":{"engine_id":"…","worker_addr":{"0":{"0":"tcp://…"}}}}
//	POST /register  {"engine_id","dp_rank","tp_rank","pp_rank","addr"}
type bootstrapServer struct {
	ln      net.Listener
	http    *http.Server
	count   *counters
	serving sync.WaitGroup

	mu      sync.Mutex // guards workers
	workers map[int]*bootstrapEntry
}

type bootstrapEntry struct {
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

func startBootstrap(ctx context.Context, addr string, count *counters) (*bootstrapServer, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("bootstrap server on %s: %w", addr, err)
	}
	b := &bootstrapServer{ln: ln, count: count, workers: make(map[int]*bootstrapEntry)}
	b.http = &http.Server{
		Handler: b, MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog: stdlog.New(io.Discard, "", 0),
	}
	b.serving.Go(func() { _ = b.http.Serve(ln) })
	return b, nil
}

func (b *bootstrapServer) port() int { return b.ln.Addr().(*net.TCPAddr).Port }

func (b *bootstrapServer) close() {
	_ = b.http.Close()
	b.serving.Wait()
}

// ServeHTTP answers as FastAPI does.
func (b *bootstrapServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

func (b *bootstrapServer) query(w http.ResponseWriter) {
	b.count.bootstrapQueries.Add(1)
	b.mu.Lock()
	body, err := json.Marshal(b.workers)
	b.mu.Unlock()
	if err != nil {
		pydantic.WriteJSON(w, http.StatusInternalServerError, []byte(`{"detail":"Internal Server Error"}`))
		return
	}
	pydantic.WriteJSON(w, http.StatusOK, body)
}

func (b *bootstrapServer) serveRegister(w http.ResponseWriter, r *http.Request) {
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

// register notes a worker; the answer says what is wrong with it, "" for nothing.
func (b *bootstrapServer) register(reg registration) (why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.workers[reg.DPRank]
	if e == nil {
		e = &bootstrapEntry{EngineID: reg.EngineID, WorkerAddr: make(map[int]map[int]string)}
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

// startProducer brings up what only a producer has: the channel by which its
// blocks are fetched, and the bootstrap server that names it.
func (s *Server) startProducer(ctx context.Context, l *life) (err error) {
	if l.side, err = handover.StartSide(ctx, s.opt.SideChannelAddr, l.transfers.Answer); err != nil {
		return err
	}
	s.mu.Lock()
	addr := s.boot
	s.mu.Unlock()
	if l.boot, err = startBootstrap(ctx, addr, l.count); err != nil {
		return err
	}
	host, port := l.advertised(l.cores[0])
	l.boot.register(registration{EngineID: l.engineID, Addr: "tcp://" + net.JoinHostPort(host, strconv.Itoa(port))})
	return nil
}
