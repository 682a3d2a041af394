package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/agent/wrap"
	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
	"github.com/pdmesh/pdmesh/internal/observe/sdnotify"
)

// reap reaps orphans of the engine, or of the container if the agent is its process 1. stop
// waits.
func (s *service) reap(ctx context.Context) (stop func()) {
	if !s.ownsProcess || s.Command == nil && os.Getpid() != 1 {
		return func() {}
	}
	if s.Command != nil {
		if err := wrap.Adopt(); err != nil {
			s.log.WithError(err).Warn("orphans of the engine will be adopted by process 1")
		}
	}
	s.reaper = wrap.NewReaper()
	return background.Start(ctx, s.reaper.Run)
}

// supervise starts the engine and registers it, and restarts it with --restart. It returns the
// exit code of its last process.
func (s *service) supervise(ctx context.Context) (code int, err error) {
	log := s.logFor("engine")
	if s.Side.Chosen {
		log.Infof("%s=%s: free port for NIXL's side channel", setup.EnvSidePort, &s.Side)
	}
	if s.Events.Command != nil {
		log.Infof("free ports for KV events: %s, replay %s", s.Events.Endpoint, s.Events.Replay)
	}
	backoff := wrap.Backoff{First: s.RestartDelay, Max: s.RestartDelayMax}
	last := wrap.Exit{}
	for start := 1; ctx.Err() == nil; start++ {
		var lasted time.Duration
		failed := cmp.Or(s.checkAddressFree(ctx), s.Side.Free(ctx), s.Events.Free(ctx), s.BootstrapServer.Free(ctx))
		var proc *wrap.Process
		if failed == nil {
			proc, failed = wrap.Start(wrap.Options{
				Argv: s.Argv(), Env: append(engineEnv(os.Environ()), s.Side.Env()...), Stdout: s.stdout, Stderr: s.stderr,
				DieWith: s.DieWith, Reaper: s.reaper, Log: log,
			})
		}
		switch {
		case start == 1 && errors.Is(failed, wrap.ErrStart):
			return wrap.StartStatus(failed), fmt.Errorf("%w: check the command after --", failed)
		case start == 1 && failed != nil:
			return 1, failed
		case failed == nil:
			log.WithField("pid", proc.PID()).Info("started: " + strings.Join(vllmargs.Masked(s.Argv()), " "))
			s.process.started(proc)
			if start == 1 {
				s.notifyReady()
			}
			failed = s.runEngine(ctx, proc)
			last = proc.Exit()
			lasted = last.At.Sub(proc.Since())
			if failed == nil && !last.OK() {
				failed = errors.New(last.String())
			}
		}
		if ctx.Err() != nil || failed == nil || !s.Restart {
			return s.ended(ctx, last, failed)
		}
		delay := backoff.After(lasted)
		log.WithError(failed).WithField("after", lasted.Round(time.Millisecond)).Warnf("engine failed; restarting in %s", delay)
		s.process.failed(failed, delay)
		s.registration.Store(nil)
		sleep.For(ctx, delay)
	}
	return last.Status(), nil
}

// ended returns the exit code of the agent after the last exit of the engine.
func (s *service) ended(ctx context.Context, last wrap.Exit, failed error) (int, error) {
	code := last.Status()
	switch {
	case ctx.Err() != nil:
		s.log.Infof("engine exited: %s", last)
		if code == (wrap.Exit{Signal: s.signals.stopSignal()}).Status() {
			return 0, nil // the usual exit of a program after a signal
		}
		return code, nil
	case failed == nil:
		s.log.Info("engine exited by itself")
		return code, nil
	}
	return max(code, 1), fmt.Errorf("engine exited: %w", failed)
}

// runEngine registers the engine until its process exits or ctx ends, and then stops the
// process. The error is nil if the engine has not failed, whatever its exit code.
func (s *service) runEngine(ctx context.Context, proc *wrap.Process) error {
	lctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.StartTimeout > 0 {
		defer time.AfterFunc(s.StartTimeout, func() {
			if err := s.checkStarted(proc); err != nil {
				cancel(err)
			}
		}).Stop()
	}
	s.runAgent(lctx, proc.Exited())
	if ctx.Err() != nil {
		// The registration has ended. A further signal skips the wait for the engine.
		proc.Stop(s.signals.skipWait, s.signals.stopSignal(), s.StopTimeout)
		return nil
	}
	proc.Stop(nil, syscall.SIGTERM, s.StopTimeout)
	return context.Cause(lctx)
}

// checkStarted returns an error if the engine still runs but has not answered correctly within
// --start-timeout.
func (s *service) checkStarted(proc *wrap.Process) error {
	reason := "no answer yet"
	if p := s.registration.Load(); p != nil {
		st := p.agent.Status()
		if st.Record.ID != "" {
			return nil
		}
		reason = cmp.Or(st.Reason, reason)
	}
	if !proc.Exit().At.IsZero() {
		return nil
	}
	return fmt.Errorf("not ready within --start-timeout (%s): %s", s.StartTimeout, reason)
}

// addressCheckTimeout is the time limit of checkAddressFree.
const addressCheckTimeout = time.Second

// checkAddressFree returns an error if a process already serves at the engine's address: the agent would
// register it in place of the engine.
func (s *service) checkAddressFree(ctx context.Context) error {
	u, err := url.Parse(s.Engine)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, addressCheckTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil // refused or unreachable
	}
	_ = conn.Close()
	return fmt.Errorf("the engine's address is already in use (%s): an engine that outlived its agent? Stop it first, or run the agent without a command to register it", u.Host)
}

// engineEnv returns the environment without variables for the agent only. With systemd's
// socket, the engine could send notifications in the agent's name.
func engineEnv(env []string) []string {
	own := []string{sdnotify.EnvSocket, sdnotify.EnvWatchdogUsec, sdnotify.EnvWatchdogPID, "PD_ETCD_PASSWORD"}
	return slices.DeleteFunc(env, func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(own, name)
	})
}
