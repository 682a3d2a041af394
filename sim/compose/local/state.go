package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/sim/compose"
)

// state is what is kept between two calls, in fleet.json.
type state struct {
	Ports     map[string]int `json:"ports"`
	Processes []*started     `json:"processes"`
}

// started is a process that up has started.
type started struct {
	compose.Process
	PID int `json:"pid"`
	// Born tells this process from a later one of the same id.
	Born string `json:"born"`
	Log  string `json:"log"`

	isNew bool // started by this very call
}

func (a *app) path(name string) string { return filepath.Join(a.dir, name) }

// open takes the directory for this call and reads the state. The caller calls
// done.
func (a *app) open() (s *state, done func(), err error) {
	for _, d := range []string{a.dir, a.path("logs"), a.path("run"), a.path("volumes")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, nil, err
		}
	}
	lock, err := os.OpenFile(a.path("lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if err := take(lock); err != nil {
		_ = lock.Close()
		return nil, nil, fmt.Errorf("another fleet command is at work in %s: %w", a.dir, err)
	}
	s, err = a.read()
	if err != nil {
		_ = lock.Close()
		return nil, nil, err
	}
	return s, func() { _ = lock.Close() }, nil
}

// lockTries is how often a taken lock is tried: a child that is just being
// started holds its parent's for a moment.
const lockTries = 20

func take(lock *os.File) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for try := 1; ; try++ {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || try == lockTries {
			return err
		}
		<-tick.C
	}
}

func (a *app) read() (*state, error) {
	s := &state{Ports: map[string]int{}}
	raw, err := os.ReadFile(a.path("fleet.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("%s: %w", a.path("fleet.json"), err)
	}
	if s.Ports == nil {
		s.Ports = map[string]int{}
	}
	return s, nil
}

// write replaces the state as a whole.
func (a *app) write(s *state) error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	next := a.path("fleet.json.new")
	if err := os.WriteFile(next, append(raw, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, a.path("fleet.json"))
}

func (s *state) find(name string) *started {
	for _, p := range s.Processes {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// alive reports whether the very process that was started still runs.
func (p *started) alive() bool {
	born, running := birth(p.PID)
	return running && born == p.Born
}

// pollEvery is the pause between two looks at processes.
const pollEvery = 50 * time.Millisecond
