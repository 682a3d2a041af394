package fakevllm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// The legs of vLLM's MooncakeConnector know each other by transfer_id alone. The
// decode engine finds the prefill engine through its bootstrap server, and asks
// for the blocks over the side channel, which stands for ZMQ and Mooncake's
// transfer engine. One line each way:
//
//	PULL =<transfer id, query-escaped>
//	OK <hash of the prompt that was computed> | ERR <reason>

// startMooncake does what the connector does before the request runs. The error
// is that of an engine which has died.
func (x *exchange) startMooncake(j *job) *pydantic.Error {
	l := x.life
	s := l.server
	k := kvparams.ParseMooncake(j.KV)
	j.mooncake = k
	if k.Load && s.opt.Role == RolePrefill || k.Produce && s.opt.Role == RoleDecode {
		// An assertion of the connector fails and takes the engine down.
		s.violation("%s engine, %s: a leg for the other role", s.opt.Role, x.id)
		l.count.crashes.Add(1)
		s.Kill()
		return pydantic.InternalError()
	}
	many := len(j.Prompts) > 1 || j.N > 1
	switch {
	case many && k.TransferID != "" && (k.Load || k.Produce):
		// Each of the answers has the same id, and only one of them gets the blocks.
		x.reused(k.TransferID, "several answers share it")
		if k.Load {
			j.fetching = make(chan fetched)
		}
	case k.Produce && k.TransferID == "":
		x.warnMooncake("Missing transfer_id in kv_transfer_params from router!")
	case k.Produce:
		if j.offers = l.transfers.Begin(k.TransferID); !j.offers {
			x.reused(k.TransferID, "a prefill has had it")
		}
	case k.Load && j.PromptLogprobs != nil:
		// The cache is not read for these; the pull only frees the prefill's blocks.
		if len(k.Missing) == 0 {
			l.fetches.Go(func() { _ = l.fetch(k) })
		}
		l.count.localPrefills.Add(int64(len(j.Prompts)))
	case k.Load:
		x.startFetch(j)
	case s.opt.Role != RolePrefill:
		l.count.localPrefills.Add(int64(len(j.Prompts)))
	}
	return nil
}

// startFetch asks for the blocks beside the request: a client that leaves does
// not take the question back. Where a name is missing vLLM warns that it will
// not transfer, and then waits all the same, for what nobody sends.
func (x *exchange) startFetch(j *job) {
	l, k := x.life, j.mooncake
	j.fetching = make(chan fetched, 1)
	if len(k.Missing) > 0 {
		x.warnMooncake("got invalid KVTransferParams: no " + strings.Join(k.Missing, ", "))
		return
	}
	l.fetches.Go(func() { j.fetching <- l.fetch(k) })
}

func (x *exchange) warnMooncake(why string) {
	s := x.life.server
	s.badKV.add(x.id + ": " + why)
	x.life.count.badKV.Add(1)
	s.opt.Log.WithField("request_id", x.id).Warn(why)
}

func (x *exchange) reused(transferID, why string) {
	x.life.server.violation("%s engine, %s: transfer_id %q: %s", x.life.server.opt.Role, x.id, transferID, why)
	x.life.count.reused.Add(1)
}

// awaitFetch waits until the prompt's blocks are there, or are known not to
// come; false means that the client left or the engine died.
func (x *exchange) awaitFetch(j *job) bool {
	l := x.life
	l.count.fetching.Add(1)
	defer l.count.fetching.Add(-1)
	select {
	case got := <-j.fetching:
		x.took(j, got)
		return true
	case <-x.r.Context().Done():
	case <-l.done:
	}
	return false
}

// took is the end of a load: blocks of another prompt are as good as any others
// to the engine, and its answer is wrong.
func (x *exchange) took(j *job, got fetched) {
	l := x.life
	s := l.server
	if got.err != nil {
		s.refusals.add(x.id + ": " + got.err.Error())
		l.count.refused.Add(1)
		if s.opt.KVLoadFailurePolicy == PolicyFail {
			j.loadErr = got.err
			return
		}
		l.count.recomputed.Add(1)
		l.count.localPrefills.Add(int64(len(j.Prompts)))
		return
	}
	l.count.loaded.Add(1)
	j.cached = len(j.Prompts[0]) - 1
	if g := model.NewGenerator(j.Prompts[0], 0); g.Hash() != got.prompt {
		j.wrongKV = true
		s.refusals.add(x.id + ": " + handover.ErrPrompt.Error() + ": the answer is wrong")
		l.count.wrongKV.Add(1)
	}
}

// offer ends a prefill's part: only what ended by length can be fetched.
func (x *exchange) offer(j *job, finish string) {
	if !j.offers || finish != "length" || x.fault != nil && x.fault.Kind == fault.NoKV {
		return
	}
	j.offers = false
	g := model.NewGenerator(j.Prompts[0], 0)
	x.life.transfers.Finish(j.mooncake.TransferID, g.Hash(), time.Now())
	x.life.count.made.Add(1)
}

// withdraw is the end of a prefill that offers nothing.
func (x *exchange) withdraw(j *job) {
	if j.offers {
		x.life.transfers.Drop(j.mooncake.TransferID)
	}
}

// fetched is what came of a question for blocks.
type fetched struct {
	prompt uint64
	err    error
}

// peers are the prefill engines that a decode engine has heard of.
type peers struct {
	mu   sync.Mutex // guards addr
	addr map[string]string
}

func (p *peers) get(engineID string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	addr, ok := p.addr[engineID]
	return addr, ok
}

func (p *peers) set(engineID, addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.addr == nil {
		p.addr = make(map[string]string)
	}
	p.addr[engineID] = addr
}

// fetch gets the blocks of one prefill. A prefill engine that is not there any
// more is no failure until the time is over: ZMQ connects again and again.
func (l *life) fetch(k kvparams.MooncakeParams) fetched {
	ctx, cancel := l.transferContext()
	defer cancel()
	addr, ok := l.peers.get(k.EngineID)
	if !ok {
		var err error
		if addr, err = l.lookUp(ctx, k); err != nil {
			return fetched{err: err}
		}
	}
	return fetchLine(ctx, addr, "PULL ="+url.QueryEscape(k.TransferID))
}

// fetchFrom asks a prefill engine whose address is known.
func (l *life) fetchFrom(addr, line string) fetched {
	ctx, cancel := l.transferContext()
	defer cancel()
	return fetchLine(ctx, addr, line)
}

func fetchLine(ctx context.Context, addr, line string) fetched {
	got, err := pull(ctx, addr, line)
	if err != nil {
		<-ctx.Done()
		return fetched{err: fmt.Errorf("transfer failed: %w", err)}
	}
	return got
}

// transferContext ends with the time that a transfer may take, or with the life.
func (l *life) transferContext() (context.Context, context.CancelFunc) {
	timeout := l.server.opt.TransferTimeout
	ctx, cancel := context.WithTimeout(context.Background(), timeout+timeout/8)
	go func() {
		select {
		case <-l.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// pull asks once; the error is that of a connection, not of the transfer.
func pull(ctx context.Context, addr, question string) (fetched, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return fetched{}, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := fmt.Fprintln(conn, question); err != nil {
		return fetched{}, err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fetched{}, err
	}
	line = strings.TrimSpace(line)
	if hash, ok := strings.CutPrefix(line, "OK "); ok {
		prompt, err := strconv.ParseUint(hash, 16, 64)
		return fetched{prompt: prompt, err: err}, nil
	}
	return fetched{err: errors.New(strings.TrimPrefix(line, "ERR "))}, nil
}

// lookUp asks the bootstrap server for an engine that this one has not heard of.
func (l *life) lookUp(ctx context.Context, k kvparams.MooncakeParams) (addr string, err error) {
	const attempts = 3
	for n := 1; ; n++ {
		err = l.query(ctx, k.Bootstrap)
		if _, lost := errors.AsType[*url.Error](err); n == attempts || !lost || !pause(ctx, 100*time.Millisecond) {
			break
		}
	}
	if addr, ok := l.peers.get(k.EngineID); ok {
		return addr, nil
	}
	return "", errors.Join(fmt.Errorf("remote engine_id %s not found from bootstrap server %s", k.EngineID, k.Bootstrap), err)
}

// pause is false when ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// query learns every engine that a bootstrap server names.
func (l *life) query(ctx context.Context, base string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/query", nil)
	if err != nil {
		return err
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the bootstrap server says %s", resp.Status)
	}
	var ranks map[string]bootstrapEntry
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&ranks); err != nil {
		return err
	}
	for _, e := range ranks {
		l.peers.set(e.EngineID, strings.TrimPrefix(e.WorkerAddr[0][0], "tcp://"))
	}
	return nil
}
