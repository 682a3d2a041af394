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
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// mooncake is vLLM's MooncakeConnector, whose legs know each other by transfer_id alone. The
// decode engine finds the prefill engine through its bootstrap server, and asks
// for the blocks over the side channel, in place of ZMQ and Mooncake's
// transfer engine: see transfer.Fetch.
type mooncake struct {
	transferring
	boot  *bootstrap // nil of a decode
	peers peers
}

// Start brings up what only a producer has: the channel by which its
// blocks are fetched, and the bootstrap server that names it.
func (m *mooncake) Start(ctx context.Context) (err error) {
	if m.Role == RoleDecode {
		return nil
	}
	m.keep()
	if m.side, err = transfer.StartSide(ctx, m.SideChannelAddr, func(q transfer.Question) (uint64, error) { return m.transfers.Pull(q.RequestID) }); err != nil {
		return err
	}
	host, port := m.advertised(m.side)
	m.boot, err = startBootstrap(ctx, m.At.Bootstrap, m.EngineIDs[0], net.JoinHostPort(host, strconv.Itoa(port)), func() { m.Count.BootstrapQueries.Add(1) })
	if err == nil {
		m.At.Bootstrap = m.boot.ln.Addr().String()
	}
	return err
}

// Close ends them.
func (m *mooncake) Close() {
	m.side.Close()
	if m.boot != nil {
		m.boot.close()
	}
}

// Bootstrap is the port of the bootstrap server, 0 for none.
func (m *mooncake) Bootstrap() int {
	if m.boot == nil {
		return 0
	}
	return m.boot.ln.Addr().(*net.TCPAddr).Port
}

// Leg knows the transfer.
func (m *mooncake) Leg(*Request) Leg {
	return &mooncakeLeg{transferLeg: transferLeg{t: &m.transferring}, m: m}
}

type mooncakeLeg struct {
	transferLeg
	m *mooncake
}

// Begin begins the transfer or asks for one.
func (l *mooncakeLeg) Begin(r *Request) *pydantic.Error {
	m, k := l.m, ParseMooncake(r.KV)
	if k.Load && m.Role == RolePrefill || k.Produce && m.Role == RoleDecode {
		// An assertion of the connector fails and takes the engine down.
		m.violate(r, "a leg for the other role")
		return m.crash()
	}
	many := len(r.Prompts) > 1 || r.N > 1
	switch {
	case many && k.TransferID != "" && (k.Load || k.Produce):
		l.share(r, k.TransferID, k.Load)
	case k.Produce && k.TransferID == "":
		m.warn(r, "Missing transfer_id in kv_transfer_params from router!")
	case k.Produce:
		l.produce(r, k.TransferID)
	case k.Load && r.PromptLogprobs != nil:
		// The cache is not read for these; the pull only frees the prefill's blocks.
		if len(k.Missing) == 0 {
			m.Work.Go(func() { _ = m.pull(k) })
		}
		m.countLocal(r)
	case k.Load && len(k.Missing) > 0:
		// vLLM warns that it will not transfer, and then waits all the same, for what
		// no engine sends.
		m.warn(r, "got invalid KVTransferParams: no "+strings.Join(k.Missing, ", "))
		l.fetching = make(chan transfer.Fetched)
	case k.Load:
		l.fetch(func() transfer.Fetched { return m.pull(k) })
	case m.Role != RolePrefill:
		m.countLocal(r)
	}
	return nil
}

func (m *mooncake) warn(r *Request, why string) {
	m.Count.BadParam(r.ID, why)
	m.Log.WithField("request_id", r.ID).Warn(why)
}

// pull gets the blocks of one prefill. A prefill engine that is not there any
// more is no failure until the time is over: ZMQ connects again and again.
func (m *mooncake) pull(k MooncakeParams) transfer.Fetched {
	ctx, cancel := m.context()
	defer cancel()
	addr, err := m.peers.find(ctx, k.EngineID, k.Bootstrap)
	if err != nil {
		return transfer.Fetched{Err: err}
	}
	return transfer.Fetch(ctx, addr, transfer.Question{Claim: transfer.Claim{RequestID: k.TransferID}})
}

// Inspect is what a proxy owes to such an engine.
func (m *mooncake) Inspect(r *Request) string {
	if k := ParseMooncake(r.KV); m.Role == RolePrefill && (!k.Produce || k.TransferID == "") {
		return notPrefill
	}
	return ""
}

// MooncakeParams is a parsed kv_transfer_params.
type MooncakeParams struct {
	Produce, Load bool
	TransferID    string
	EngineID      string
	Bootstrap     string
	Missing       []string // of what a decode needs
}

// ParseMooncake reads the field as the connector does: what is asked for is
// true, names are there or not, and nothing else is looked at.
func ParseMooncake(raw []byte) MooncakeParams {
	var k MooncakeParams
	members, err := membersOf(raw)
	if err != nil || members == nil {
		return k
	}
	k.Load = pydantic.Truthy(members["do_remote_prefill"])
	k.Produce = !k.Load && pydantic.Truthy(members["do_remote_decode"])
	for name, into := range map[string]*string{
		"remote_engine_id": &k.EngineID, "remote_bootstrap_addr": &k.Bootstrap, "transfer_id": &k.TransferID,
	} {
		if json.Unmarshal(members[name], into) != nil || *into == "" {
			k.Missing = append(k.Missing, name)
		}
	}
	slices.Sort(k.Missing)
	return k
}

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
