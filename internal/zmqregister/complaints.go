package zmqregister

import (
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// complaints are log lines about peers. What a machine does wrong it does every three
// seconds: each of its mistakes is said once a minute.
type complaints struct {
	log logrus.FieldLogger

	mu   sync.Mutex
	said map[string]time.Time
}

const (
	sayAgain = time.Minute
	maxSaid  = 1024 // different complaints in a minute; then all may be said again
)

func (c *complaints) say(remote string, err error) {
	host, _, splitErr := net.SplitHostPort(remote)
	if splitErr != nil {
		host = remote
	}
	text := instance.Printable(err.Error(), 400)
	now := time.Now()
	c.mu.Lock()
	if c.said == nil || len(c.said) >= maxSaid {
		c.said = make(map[string]time.Time)
	}
	last, again := c.said[host+" "+text]
	again = again && now.Sub(last) < sayAgain
	if !again {
		c.said[host+" "+text] = now
	}
	c.mu.Unlock()
	if !again {
		c.log.WithField("remote", host).Warn("registration by ZeroMQ: " + text)
	}
}
