package program

import (
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/agent/wrap"
)

// engineState has the state of a wrapped engine's process for reports. It is safe for
// concurrent use.
type engineState struct {
	mu     sync.Mutex // guards all below
	proc   *wrap.Process
	starts int64
	last   string // failure of the previous start or process
	lastAt time.Time
	until  time.Time // next start, while none runs
}

func (e *engineState) started(p *wrap.Process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.proc, e.until = p, time.Time{}
	e.starts++
}

func (e *engineState) failed(failed error, delay time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.proc, e.last, e.lastAt, e.until = nil, failed.Error(), time.Now(), time.Now().Add(delay)
}

// report returns nil before the first attempt to start an engine.
func (e *engineState) report() *agentctl.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.starts == 0 && e.last == "" {
		return nil
	}
	p := &agentctl.Process{Starts: e.starts, LastExit: e.last}
	if !e.lastAt.IsZero() {
		p.LastExitAt = new(e.lastAt)
	}
	if !e.until.IsZero() {
		p.NextStartSeconds = max(0, time.Until(e.until).Seconds())
	}
	if e.proc == nil {
		return p
	}
	select {
	case <-e.proc.Exited():
		p.LastExit = e.proc.Exit().String()
	default:
		p.PID = e.proc.PID()
		p.AgeSeconds = time.Since(e.proc.Since()).Seconds()
	}
	return p
}
