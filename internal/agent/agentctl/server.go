package agentctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
)

// Source has the functions behind the control socket. They must be safe for concurrent use.
type Source struct {
	Report  func() Report
	Drain   func()
	Metrics http.Handler // nil: none
}

// ErrInUse means that another agent answers on the socket.
var ErrInUse = errors.New("another agent uses this control socket")

const probeTimeout = time.Second

// Listen creates the socket with mode 0600. It replaces the socket of a dead agent at the
// path, and fails if there is any other file.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("control socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("control socket: %s exists and is not a socket: remove it or choose another path with --socket", path)
	default:
		dctx, cancel := context.WithTimeout(ctx, probeTimeout)
		conn, err := (&net.Dialer{}).DialContext(dctx, "unix", path)
		cancel()
		if err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("%w: %s", ErrInUse, path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) { // for example, the agent is busy or runs as another user
			return nil, fmt.Errorf("control socket: %w", err)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("control socket: %w", err)
		}
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = lis.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return lis, nil
}

// Serve serves requests on lis until ctx ends. When it returns, all connections are
// closed and the socket is removed.
func Serve(ctx context.Context, lis net.Listener, s Source, log logrus.FieldLogger) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = s.Report().WriteJSON(w) // the client may have disconnected
	})
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, _ *http.Request) {
		log.Info("asked to drain on the control socket")
		s.Drain()
		w.WriteHeader(http.StatusAccepted)
	})
	if s.Metrics != nil {
		mux.Handle("GET /metrics", s.Metrics)
	}
	srv := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second,
		MaxHeaderBytes: 16 << 10, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(lis); err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.WithError(err).Warn("the control socket failed")
		}
	}()
	<-ctx.Done()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if srv.Shutdown(end) != nil { // a client keeps a connection open
		_ = srv.Close()
	}
	<-done
}
