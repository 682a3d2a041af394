package lmcache

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
)

// Receiver is a bound PULL socket whose notifications go into an inbox.
type Receiver struct {
	inbox  *Inbox
	socket *zmq.Listener
	log    logrus.FieldLogger
	stop   func()
}

// logInterval is the least time between two log lines about refused peers, and about invalid messages.
const logInterval = 10 * time.Second

// Listen binds a PULL socket at tcp://host:port.
func Listen(ctx context.Context, endpoint string, inbox *Inbox, log logrus.FieldLogger) (*Receiver, error) {
	r := &Receiver{inbox: inbox, log: log}
	refused := rate.Sometimes{Interval: logInterval}
	socket, err := zmq.Listen(ctx, zmq.Pull, endpoint, zmq.Bounds{Bytes: 4 << 10, Frames: 2}, func(remote string, err error) {
		refused.Do(func() {
			log.WithError(err).WithField("remote", remote).Warn("refused a peer of the socket for LMCache's notifications")
		})
	})
	if err != nil {
		return nil, fmt.Errorf("socket for LMCache's notifications: %w", err)
	}
	r.socket = socket
	r.stop = background.Start(ctx, r.receive)
	return r, nil
}

func (r *Receiver) receive(ctx context.Context) {
	trouble := rate.Sometimes{Interval: logInterval}
	for {
		m, err := r.socket.Receive(ctx)
		if err != nil {
			return // closed
		}
		id, err := "", ErrMessage
		if len(m.Frames) == 1 {
			id, err = ParseNotification(m.Frames[0])
		}
		if err == nil {
			r.inbox.Add(id, m.Remote)
			continue
		}
		trouble.Do(func() {
			r.log.WithError(err).WithField("remote", m.Remote).Warn("ignored a message that is not a notification of LMCache")
		})
	}
}

// Addr returns the address of the socket.
func (r *Receiver) Addr() net.Addr { return r.socket.Addr() }

// Close closes the socket and waits for its goroutine.
func (r *Receiver) Close() {
	r.stop()
	_ = r.socket.Close() // it was open
}
