package zmqregister

import (
	"net"
	"sync"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// warnings logs invalid messages of peers. Peers repeat them every three seconds, so each text is
// logged once a minute for each host.
type warnings struct {
	log logrus.FieldLogger

	mu     sync.Mutex // guards the fields below
	minute rate.Sometimes
	logged map[string]bool // in this minute
}

// maxLogged bounds the warnings in a minute.
const maxLogged = 1024

func (w *warnings) warn(remote string, err error) {
	host, _, _ := net.SplitHostPort(remote)
	text := instance.Printable(err.Error(), 400)
	w.mu.Lock()
	w.minute.Do(func() { w.logged = make(map[string]bool) })
	due := !w.logged[host+" "+text] && len(w.logged) < maxLogged
	if due {
		w.logged[host+" "+text] = true
	}
	w.mu.Unlock()
	if due {
		w.log.WithField("remote", host).Warn("registration by ZeroMQ: " + text)
	}
}
