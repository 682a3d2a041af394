package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// ErrDamaged is returned if etcd cannot start with the files in its data directory.
var ErrDamaged = errors.New("the files of the embedded etcd are damaged")

// Config configures a Host. As JSON it is the first line of the child's standard input.
type Config struct {
	ListenClient string         `json:"listen_client"` // as in embedetcd.Config
	DataDir      string         `json:"data_dir"`
	Prefix       string         `json:"prefix"`
	Gateway      bool           `json:"gateway"`
	TLS          certs.Files    `json:"tls"` // the same
	Log          *logrus.Logger `json:"-"`
	// Pause is the first pause before a restart, default 1 s. It doubles with each attempt, up
	// to maxPause.
	Pause time.Duration `json:"-"`

	LogLevel string `json:"log_level"` // set by launch, that of Log
}

const (
	maxPause = 30 * time.Second
	// resetAfter is the time for which an etcd must have run to reset the pause.
	resetAfter = time.Minute
	// stopLimit is how long an etcd may take to close its files.
	stopLimit = 5 * time.Second
	// startLimit bounds a start; etcd's own limits are shorter.
	startLimit = 90 * time.Second
)

// State is the state of the etcd.
type State struct {
	// Ended is the reason why etcd does not run; "" while it runs.
	Ended string
	// Ends is the number of times that etcd exited by itself.
	Ends int64
	// Joined reports whether this process runs no etcd any more, because the etcd of another
	// proxy serves at its address.
	Joined bool
}

// Host keeps an etcd running in a child process. It is safe for concurrent use.
type Host struct {
	cfg      Config
	log      *logrus.Entry
	endpoint string
	stop     func()

	mu    sync.Mutex // guards state
	state State
}

// Start runs an etcd and returns when it serves. Its errors are those of embedetcd.Start, and
// ErrDamaged. If the disk is full, it returns without an error, and etcd is started as soon as
// there is space: the proxy can serve the membership that it has saved.
func Start(ctx context.Context, cfg Config) (*Host, error) {
	cfg.Pause = cmp.Or(cfg.Pause, time.Second)
	h := &Host{cfg: cfg, log: cfg.Log.WithField("component", "etcd")}
	c, err := h.launch(ctx)
	switch {
	case errors.Is(err, errNoSpace) && !strings.HasSuffix(cfg.ListenClient, ":0"):
		h.endpoint = cfg.ListenClient
		h.note(func(s *State) { s.Ended = err.Error() })
		h.log.WithError(err).Error("embedded etcd does not start: serving what is known without it, and trying again")
	case err != nil:
		return nil, err
	default:
		h.endpoint = c.endpoint
		h.cfg.ListenClient = c.endpoint // also if its port was 0
	}
	h.stop = background.Start(ctx, func(ctx context.Context) { h.supervise(ctx, c) })
	return h, nil
}

// Endpoint returns the host:port for clients; it does not change.
func (h *Host) Endpoint() string { return h.endpoint }

// State returns the state of the etcd.
func (h *Host) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

func (h *Host) note(change func(*State)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.state)
}

// Close stops the etcd and waits for it.
func (h *Host) Close() {
	h.stop()
}

// supervise restarts the etcd whenever it exits, until ctx ends. c is nil if it has not run yet.
func (h *Host) supervise(ctx context.Context, c *child) {
	pause := h.cfg.Pause
	for {
		if c != nil {
			began := time.Now()
			select {
			case <-ctx.Done():
				c.close(stopLimit)
				return
			case <-c.done:
			}
			if time.Since(began) >= resetAfter {
				pause = h.cfg.Pause
			}
			h.note(func(s *State) { s.Ended = c.reason(); s.Ends++ })
			h.log.WithField("reason", c.reason()).Error("embedded etcd has ended, serving the last membership and restarting it")
		}
		if c = h.again(ctx, &pause); c == nil {
			return
		}
		h.note(func(s *State) { s.Ended = "" })
		h.log.Warn("embedded etcd serves again")
	}
}

// again retries to start the etcd until it serves. It returns nil when ctx ends, or when another
// etcd serves at its address.
func (h *Host) again(ctx context.Context, pause *time.Duration) *child {
	last := ""
	for {
		wait := *pause/2 + rand.N(*pause)
		*pause = min(2**pause, maxPause)
		if !sleep.For(ctx, wait) {
			return nil
		}
		c, err := h.launch(ctx)
		switch {
		case err == nil:
			return c
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, embedetcd.ErrJoin):
			h.note(func(s *State) { s.Ended, s.Joined = "", true })
			h.log.Warnf("another etcd serves at %s now: using it", h.endpoint)
			return nil
		}
		h.note(func(s *State) { s.Ended = err.Error() })
		if text := err.Error(); text != last {
			last = text
			h.log.WithError(err).Error("embedded etcd does not start, retrying")
		}
	}
}

// launch makes one attempt to start the etcd.
func (h *Host) launch(ctx context.Context) (*child, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	hadFiles, missing := inspectDataDir(h.cfg.DataDir)
	if missing != "" {
		return nil, damaged(h.cfg.DataDir, missing)
	}
	cfg := h.cfg
	cfg.LogLevel = cfg.Log.GetLevel().String()
	c, err := start(cfg, h.log)
	if err != nil {
		return nil, fmt.Errorf("start the process of the embedded etcd: %w", err)
	}
	select {
	case <-c.ready:
		return c, nil
	case <-c.done:
	case <-ctx.Done():
		// Not killed at once: an interrupted start leaves files with which etcd cannot start.
		c.close(stopLimit)
		return nil, fmt.Errorf("start the embedded etcd: %w", context.Cause(ctx))
	}
	if c.failure != nil && c.failure.Kind != "" {
		return nil, c.failure
	}
	_, why, cut := strings.Cut(c.reason(), "with data in "+h.cfg.DataDir+": ")
	if !cut {
		why = c.reason()
	}
	if hadFiles && !external(why) {
		return nil, damaged(h.cfg.DataDir, why)
	}
	if strings.Contains(why, "no space left on device") || strings.Contains(why, "disk quota exceeded") {
		return nil, fmt.Errorf("start the embedded etcd with data in %s: %s (%w)", h.cfg.DataDir, why, errNoSpace)
	}
	return nil, fmt.Errorf("start the embedded etcd with data in %s: %s", h.cfg.DataDir, why)
}

// errNoSpace is wrapped by the error of a start that fails because the disk is full.
var errNoSpace = errors.New("the disk is full")

func damaged(dir, why string) error {
	return fmt.Errorf("%w: etcd does not start over %s: %s. Move that directory away and start again. "+
		"Agents register their instances again by themselves; static instances and removals come back from --state-dir, or with \"pdctl apply\" from a file of \"pdctl export\"",
		ErrDamaged, dir, why)
}

// inspectDataDir reports whether an etcd has used a directory, and which required file is missing: etcd
// would wait for that file without a limit.
func inspectDataDir(dir string) (hadFiles bool, missing string) {
	if _, err := os.Stat(filepath.Join(dir, "member")); err != nil || embedetcd.Unfinished(dir) {
		return false, ""
	}
	db, err := os.Stat(filepath.Join(dir, "member", "snap", "db"))
	if err != nil || db.Size() == 0 {
		return true, ""
	}
	if logs, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal")); err == nil && len(logs) == 0 {
		return true, "its log (member/wal) is missing beside its database"
	}
	return true, ""
}

// external reports whether etcd ended for a reason other than its files.
func external(why string) bool {
	for _, cause := range []string{
		"no space left on device", "disk quota exceeded", "too many open files", "cannot allocate memory", "permission denied",
		"read-only file system", "address already in use", "cannot assign requested address", "not ready within", "signal: ",
		"resource temporarily unavailable", "file descriptor limit", "newosproc", "out of memory",
	} {
		if strings.Contains(why, cause) && !strings.Contains(why, "SIGBUS") && !strings.Contains(why, "SIGSEGV") {
			return true
		}
	}
	return false
}
