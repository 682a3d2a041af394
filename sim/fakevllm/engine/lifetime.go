package engine

import "time"

// Lifetime is how long a request is worth working on: until its client leaves, a write to
// it fails, or the engine dies. One goroutine uses it.
type Lifetime struct {
	Client <-chan struct{} // closed when the client has left
	Engine <-chan struct{} // closed when the engine has died

	broken bool
	timer  *time.Timer
}

// Break reports whether a write to the client has failed.
func (l *Lifetime) Break() { l.broken = true }

// Broken reports whether one has.
func (l *Lifetime) Broken() bool { return l.broken }

// Alive reports whether it goes on.
func (l *Lifetime) Alive() bool {
	select {
	case <-l.Client:
		return false
	case <-l.Engine:
		return false
	default:
		return !l.broken
	}
}

// Dead reports whether the engine has died.
func (l *Lifetime) Dead() bool {
	select {
	case <-l.Engine:
		return true
	default:
		return false
	}
}

// Wait lets time pass; false means that the client left or the engine died.
func (l *Lifetime) Wait(d time.Duration) bool {
	if d <= 0 {
		return l.Alive()
	}
	if l.timer == nil {
		l.timer = time.NewTimer(d)
	} else {
		l.timer.Reset(d)
	}
	select {
	case <-l.timer.C:
		return true
	case <-l.Client:
		l.timer.Stop()
		return false
	case <-l.Engine:
		l.timer.Stop()
		return false
	}
}

// await waits for a channel to be closed; false means the same as of Wait.
func (l *Lifetime) await(closed <-chan struct{}) bool {
	select {
	case <-closed:
		return true
	case <-l.Client:
	case <-l.Engine:
	}
	return false
}
