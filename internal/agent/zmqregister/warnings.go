package zmqregister

import (
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// warnings logs invalid messages of peers. Peers repeat them every three seconds, so each text is
// logged once a minute for each host.
type warnings struct {
	log logrus.FieldLogger

	mu     sync.Mutex // guards logged
	logged map[string]time.Time
}

const (
	warnEvery = time.Minute
	maxLogged = 1024 // different warnings in a minute; then all may be logged again
)

func (w *warnings) warn(remote string, err error) {
	host, _, splitErr := net.SplitHostPort(remote)
	if splitErr != nil {
		host = remote
	}
	text := instance.Printable(err.Error(), 400)
	now := time.Now()
	w.mu.Lock()
	if w.logged == nil || len(w.logged) >= maxLogged {
		w.logged = make(map[string]time.Time)
	}
	last, again := w.logged[host+" "+text]
	again = again && now.Sub(last) < warnEvery
	if !again {
		w.logged[host+" "+text] = now
	}
	w.mu.Unlock()
	if !again {
		w.log.WithField("remote", host).Warn("registration by ZeroMQ: " + text)
	}
}
