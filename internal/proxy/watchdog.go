package proxy

import (
	"context"
	"errors"
	"net/http"
)

// checkAlive checks the parts that every request needs: the router, the snapshot, and the locks of watcher and
// scheduler. systemd's watchdog depends on it. It does not use the network, so that a busy proxy is not
// restarted.
func (p *app) checkAlive(ctx context.Context) error {
	done := make(chan int, 1)
	go func() { // leaks if the proxy hangs; the watchdog then kills the process
		w := &statusOnly{header: http.Header{}, code: http.StatusOK}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/livez", nil)
		if err != nil {
			return
		}
		p.router.ServeHTTP(w, req)
		_ = p.watcher.Status()
		for _, in := range p.watcher.Snapshot().All() {
			_ = p.tracker.Available(in.Key)
			_ = p.sched.InFlight(in.Key)
		}
		done <- w.code
	}()
	select {
	case code := <-done:
		if code == http.StatusOK {
			return nil
		}
	case <-ctx.Done():
	}
	return errors.New("router, watcher or scheduler does not respond")
}

// statusOnly is a response writer that keeps only the status.
type statusOnly struct {
	header http.Header
	code   int
}

// Header implements http.ResponseWriter.
func (w *statusOnly) Header() http.Header { return w.header }

// Write implements http.ResponseWriter.
func (w *statusOnly) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (w *statusOnly) WriteHeader(code int) { w.code = code }
