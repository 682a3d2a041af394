package sdnotify_test

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdmesh/pdmesh/internal/sdnotify"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func env(kv ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(kv); i += 2 {
			if kv[i] == name {
				return kv[i+1], true
			}
		}
		return "", false
	}
}

func TestSend(t *testing.T) {
	t.Parallel()
	for _, path := range []string{filepath.Join(t.TempDir(), "n"), "@pdmesh-test-" + strconv.FormatInt(time.Now().UnixNano(), 36)} {
		s := testkit.StartSystemdAt(t, path)
		n, err := sdnotify.New(env(sdnotify.EnvSocket, path), 1)
		if err != nil || !n.Enabled() {
			t.Fatal(err)
		}
		if err := n.Send(sdnotify.Ready, sdnotify.Status("two\nlines\x1b")); err != nil {
			t.Fatal(err)
		}
		if err := n.Send(sdnotify.Stopping, sdnotify.ExtendTimeout(90*time.Second)); err != nil {
			t.Fatal(err)
		}
		want := []string{"READY=1\nSTATUS=two lines ", "STOPPING=1\nEXTEND_TIMEOUT_USEC=90000000"}
		testkit.Eventually(t, time.Minute, func() error {
			if d := cmp.Diff(want, s.Messages()); d != "" {
				return errors.New(d)
			}
			return nil
		})
	}
}

func TestWithoutSystemd(t *testing.T) {
	t.Parallel()
	var none *sdnotify.Notifier
	for _, n := range []*sdnotify.Notifier{none, {}} {
		if err := n.Send(sdnotify.Ready); err != nil || n.Enabled() {
			t.Error(err)
		}
		n.Watch(t.Context(), func(context.Context) error { t.Error("asked"); return nil }, func(error) {})
	}
}

func TestBadEnvironment(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env  []string
		says string // "" for no error
	}{
		"nothing":               {nil, ""},
		"relative path":         {[]string{"NOTIFY_SOCKET", "run/n"}, "neither a path"},
		"watchdog is no number": {[]string{"NOTIFY_SOCKET", "/n", "WATCHDOG_USEC", "10s"}, "no number of microseconds"},
		"watchdog is negative":  {[]string{"NOTIFY_SOCKET", "/n", "WATCHDOG_USEC", "-1"}, "no number of microseconds"},
		"watchdog of another":   {[]string{"NOTIFY_SOCKET", "/n", "WATCHDOG_USEC", "x", "WATCHDOG_PID", "99"}, ""},
	} {
		n, err := sdnotify.New(env(tc.env...), 1)
		if n == nil || (err == nil) != (tc.says == "") || (err != nil && (!strings.Contains(err.Error(), tc.says) || !errors.Is(err, sdnotify.ErrSocket))) {
			t.Errorf("%s: %v", name, err)
		}
	}
	n, err := sdnotify.New(env(sdnotify.EnvSocket, filepath.Join(t.TempDir(), "nobody")), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Send(sdnotify.Ready); !errors.Is(err, sdnotify.ErrSocket) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "n")
	s := testkit.StartSystemdAt(t, path)
	n, err := sdnotify.New(env(sdnotify.EnvSocket, path, sdnotify.EnvWatchdogUsec, "20000", sdnotify.EnvWatchdogPID, "7"), 7)
	if err != nil {
		t.Fatal(err)
	}
	var ill atomic.Bool
	var asked atomic.Int64
	var mu sync.Mutex
	var reports []string
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Watch(ctx, func(ctx context.Context) error {
			asked.Add(1)
			if ill.Load() {
				<-ctx.Done() // hangs
				return ctx.Err()
			}
			return nil
		}, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				reports = append(reports, "well")
			} else {
				reports = append(reports, "ill")
			}
		})
	}()
	await := func(want ...string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			mu.Lock()
			defer mu.Unlock()
			if d := cmp.Diff(want, reports); d != "" {
				return errors.New(d)
			}
			return nil
		})
	}
	pings := func(more int) {
		t.Helper()
		from := s.Count("WATCHDOG=1")
		testkit.Eventually(t, time.Minute, func() error {
			if s.Count("WATCHDOG=1") < from+more {
				return errors.New("no ping")
			}
			return nil
		})
	}
	pings(3)
	ill.Store(true)
	await("ill")
	// While ill it is asked again and again, and nothing is sent. The first
	// rounds let what was sent before arrive.
	rounds := func() {
		from := asked.Load()
		testkit.Eventually(t, time.Minute, func() error {
			if asked.Load() < from+5 {
				return errors.New("not asked")
			}
			return nil
		})
	}
	rounds()
	silent := s.Count("WATCHDOG=1")
	rounds()
	if got := s.Count("WATCHDOG=1"); got != silent {
		t.Errorf("%d pings while ill", got-silent)
	}
	ill.Store(false)
	await("ill", "well")
	pings(2)
	cancel()
	<-done
}
