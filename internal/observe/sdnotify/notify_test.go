package sdnotify_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/observe/sdnotify"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// setenv sets the variables of the protocol; an empty value is an unset variable.
func setenv(t *testing.T, socket, usec string) {
	t.Helper()
	t.Setenv(sdnotify.EnvSocket, socket)
	t.Setenv(sdnotify.EnvWatchdogUsec, usec)
	t.Setenv(sdnotify.EnvWatchdogPID, "")
}

func TestSend(t *testing.T) {
	s := testkit.StartSystemd(t)
	setenv(t, s.Path, "")
	require.True(t, sdnotify.Enabled(), "not enabled")
	require.NoError(t, sdnotify.Send(daemon.SdNotifyReady, sdnotify.Status("two\nlines\x1b")))
	require.NoError(t, sdnotify.Send(daemon.SdNotifyStopping, sdnotify.ExtendTimeout(90*time.Second)))
	want := []string{"READY=1\nSTATUS=two lines ", "STOPPING=1\nEXTEND_TIMEOUT_USEC=90000000"}
	testkit.EventuallyEqual(t, time.Minute, func() string { return cmp.Diff(want, s.Messages()) }, "")
}

func TestWithoutSystemd(t *testing.T) {
	sane := func(context.Context) error { t.Error("sane was called"); return nil }
	var out testkit.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	setenv(t, "", "")
	err := sdnotify.Send(daemon.SdNotifyReady)
	assert.True(t, err == nil && !sdnotify.Enabled(), err)
	sdnotify.Watchdog(t.Context(), "agent", sane, log)
	assert.Equal(t, "", out.String())
	setenv(t, filepath.Join(t.TempDir(), "missing"), "10s")
	assert.Error(t, sdnotify.Send(daemon.SdNotifyReady), "no error without a listener")
	sdnotify.Watchdog(t.Context(), "agent", sane, log)
	assert.Contains(t, out.String(), "no watchdog") // WATCHDOG_USEC is invalid
}

func TestWatchdog_Hangs(t *testing.T) {
	s := testkit.StartSystemd(t)
	setenv(t, s.Path, "20000")
	var hangs atomic.Bool
	var calls atomic.Int64
	var out testkit.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		sdnotify.Watchdog(ctx, "agent", func(ctx context.Context) error {
			calls.Add(1)
			if hangs.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, log)
	}()
	await := func(reports int) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			if n := strings.Count(out.String(), "agent is stuck: no more watchdog pings"); n != reports {
				return fmt.Errorf("%d reports, want %d", n, reports)
			}
			return nil
		})
	}
	pings := func(more int) {
		t.Helper()
		from := s.Count(daemon.SdNotifyWatchdog)
		testkit.EventuallyTrue(t, time.Minute, func() bool { return s.Count(daemon.SdNotifyWatchdog) >= from+more }, "no ping")
	}
	pings(3)
	hangs.Store(true)
	await(1)
	// Watchdog keeps calling sane and sends nothing. The first rounds let earlier pings arrive.
	rounds := func() {
		from := calls.Load()
		testkit.EventuallyTrue(t, time.Minute, func() bool { return calls.Load() >= from+5 }, "sane was not called")
	}
	rounds()
	before := s.Count(daemon.SdNotifyWatchdog)
	rounds()
	assert.Equal(t, before, s.Count(daemon.SdNotifyWatchdog), "pings while sane hangs")
	hangs.Store(false)
	pings(2)
	await(1)
	hangs.Store(true)
	await(2)
	cancel()
	<-done
}

func TestWatchdog(t *testing.T) {
	var out testkit.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	setenv(t, filepath.Join(t.TempDir(), "missing"), "10s")
	sdnotify.Watchdog(t.Context(), "agent", nil, log)
	assert.Contains(t, out.String(), "no watchdog")
	setenv(t, testkit.StartSystemd(t).Path, "20000")
	ctx, cancel := context.WithCancel(t.Context())
	sdnotify.Watchdog(ctx, "agent", func(context.Context) error {
		if strings.Contains(out.String(), "agent is stuck: no more watchdog pings") {
			cancel()
		}
		return errors.New("no probe")
	}, log)
}
