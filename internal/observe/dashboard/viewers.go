package dashboard

import (
	"sync"
)

const (
	// maxViewers bounds the number of viewers.
	maxViewers = 32
	// maxLag is the number of events that a viewer may lag before it is disconnected. It
	// reconnects by itself and gets a snapshot.
	maxLag = 8
)

// viewers are the open event streams of the page.
type viewers struct {
	joined chan struct{} // there is a new viewer

	mu  sync.Mutex       // guards the fields below; client requests never lock it
	all map[*viewer]bool // whether it has a snapshot
}

// viewer is one open event stream.
type viewer struct {
	events chan []byte
	slow   chan struct{} // closed when it is disconnected
}

// join adds a viewer, which receives a snapshot soon; nil if there are too many.
func (v *viewers) join() *viewer {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.all) >= maxViewers {
		return nil
	}
	one := &viewer{events: make(chan []byte, maxLag), slow: make(chan struct{})}
	v.all[one] = false
	select {
	case v.joined <- struct{}{}:
	default: // already signalled
	}
	return one
}

func (v *viewers) leave(one *viewer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.all, one)
}

// none reports whether there are no viewers.
func (v *viewers) none() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.all) == 0
}

// welcome sends the event returned by makes to new viewers, which receive all events from then on.
func (v *viewers) welcome(makes func() []byte) {
	v.mu.Lock()
	var fresh []*viewer
	for one, greeted := range v.all {
		if !greeted {
			v.all[one] = true
			fresh = append(fresh, one)
		}
	}
	v.mu.Unlock()
	if len(fresh) == 0 {
		return
	}
	e := makes()
	for _, one := range fresh {
		one.events <- e // it is the first
	}
}

// send sends an event to all viewers that have a snapshot, and disconnects those that are too slow.
func (v *viewers) send(e []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for one, greeted := range v.all {
		if !greeted {
			continue
		}
		select {
		case one.events <- e:
		default:
			delete(v.all, one)
			close(one.slow)
		}
	}
}
