package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Peers are the prefill engines that a decode engine has heard of.
type Peers struct {
	mu   sync.Mutex // guards addr
	addr map[string]string
}

func (p *Peers) get(engineID string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	addr, ok := p.addr[engineID]
	return addr, ok
}

func (p *Peers) set(engineID, addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.addr == nil {
		p.addr = make(map[string]string)
	}
	p.addr[engineID] = addr
}

// Find is the address of an engine. It asks a bootstrap server for one that it has not
// heard of.
func (p *Peers) Find(ctx context.Context, engineID, base string) (addr string, err error) {
	if addr, ok := p.get(engineID); ok {
		return addr, nil
	}
	const attempts = 3
	for n := 1; ; n++ {
		err = p.query(ctx, base)
		if _, lost := errors.AsType[*url.Error](err); n == attempts || !lost || !pause(ctx, 100*time.Millisecond) {
			break
		}
	}
	if addr, ok := p.get(engineID); ok {
		return addr, nil
	}
	return "", errors.Join(fmt.Errorf("remote engine_id %s not found from bootstrap server %s", engineID, base), err)
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
func (p *Peers) query(ctx context.Context, base string) error {
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
	var ranks map[string]entry
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&ranks); err != nil {
		return err
	}
	for _, e := range ranks {
		p.set(e.EngineID, strings.TrimPrefix(e.WorkerAddr[0][0], "tcp://"))
	}
	return nil
}
