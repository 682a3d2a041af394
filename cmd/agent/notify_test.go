package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

// systemd is the receiving end of NOTIFY_SOCKET.
type systemd struct {
	path string
	mu   sync.Mutex
	got  []string
}

func startSystemd(t *testing.T) *systemd {
	t.Helper()
	s := &systemd{path: filepath.Join(t.TempDir(), "notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.got = append(s.got, strings.Split(string(buf[:n]), "\n")...)
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return s
}

func (s *systemd) awaits(t *testing.T, what string, times int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := 0
		for _, m := range s.got {
			if strings.HasPrefix(m, what) {
				n++
			}
		}
		if n < times {
			return fmt.Errorf("%q %d times in %q, want %d", what, n, s.got, times)
		}
		return nil
	})
}

// READY does not wait for the engine to load: systemd would kill it for that.
func TestSystemd(t *testing.T) {
	sd := startSystemd(t)
	t.Setenv("NOTIFY_SOCKET", sd.path) // the process inherits it
	t.Setenv("WATCHDOG_USEC", "200000")
	loaded := filepath.Join(t.TempDir(), "loaded")
	w := wrapEngine(t, "load="+loaded)
	sd.awaits(t, "READY=1", 1)
	sd.awaits(t, "STATUS=probing: ", 1)
	sd.awaits(t, "WATCHDOG=1", 3)
	touch(t, loaded)
	awaitState(t, w.cli, w.key, instance.Ready)
	sd.awaits(t, "STATUS=serving; registration registered", 1)
	w.send(t, syscall.SIGTERM)
	sd.awaits(t, "STOPPING=1", 1)
	sd.awaits(t, "EXTEND_TIMEOUT_USEC=170000000", 1) // 2 min drain, 30 s engine, 20 s
	if code := w.code(t); code != 7 {
		t.Errorf("exit %d", code)
	}
}

type stuckEngine struct{}

func (stuckEngine) Probe(ctx context.Context) (instance.Facts, error) {
	<-ctx.Done()
	return instance.Facts{}, ctx.Err()
}
func (stuckEngine) Load(context.Context) (vllm.Stats, error) { return vllm.Stats{}, nil }

type noRegistrar struct{}

func (noRegistrar) Set(instance.Record)          {}
func (noRegistrar) Settle(context.Context)       {}
func (noRegistrar) Revoke(context.Context) error { return nil }

// A loop that has not turned for several rounds is not sane; one that has not
// begun, or has ended, is not judged.
func TestSane(t *testing.T) {
	t.Parallel()
	ctl := &control{}
	n := &notifier{ctl: ctl, c: config{probeInterval: time.Second, probeTimeout: time.Second}}
	if err := n.sane(t.Context()); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	log := testLog()
	ag := agent.New(stuckEngine{}, noRegistrar{}, agent.Options{ProbeTimeout: time.Hour, Log: log})
	ctl.life.Store(&parts{agent: ag})
	if err := n.sane(t.Context()); err != nil {
		t.Errorf("before its first turn: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ag.Run(ctx) }()
	testkit.Eventually(t, patience, func() error {
		if ag.Status().Beat.IsZero() {
			return errors.New("no turn yet")
		}
		return nil
	})
	n.c.probeInterval, n.c.probeTimeout = -agent.MaxBackoff, 0 // no time at all
	testkit.Eventually(t, patience, func() error {
		if err := n.sane(t.Context()); err == nil || !strings.Contains(err.Error(), "no probe for") {
			return fmt.Errorf("stuck: %v", err)
		}
		return nil
	})
	cancel()
	<-done
	if err := n.sane(t.Context()); err != nil {
		t.Errorf("after its end: %v", err)
	}
}
