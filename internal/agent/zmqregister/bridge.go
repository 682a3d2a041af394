package zmqregister

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Options of a Bridge. Endpoint, Registrar, Client, HostID and Log are required.
type Options struct {
	Endpoint string // of the ROUTER, tcp://host:port
	// Registrar creates a registration; the bridge sets key, host id, log and event.
	Registrar func(lease.RegistrarOptions) *lease.Registrar
	// Client calls the engines. Its dialer decides which addresses may be called.
	Client *vllm.Client
	// Agents has the options of the instances' agents. The bridge sets Key, Exited, Log, and the fields
	// of Base that pings contain.
	Agents agent.Options
	HostID string // of this network namespace
	// TTL of the leases, and maximum time without a ping; 0 means schema.DefaultTTL.
	TTL time.Duration
	// AllowLoopback accepts instances that send a loopback address.
	AllowLoopback bool
	Log           logrus.FieldLogger
}

// maxInstances bounds the instances that are registered.
const maxInstances = 1024

// Bridge is a ROUTER socket and the registrations of the engines that ping it.
type Bridge struct {
	o        Options
	listener *zmq.Listener
	warnings warnings
	counts   counts

	// The following belong to Run's goroutine.
	members  map[instance.Key]*member
	swept    time.Time
	finished chan *member
	running  sync.WaitGroup
}

// Listen binds the ROUTER. Call Run or Close afterwards.
func Listen(ctx context.Context, o Options) (*Bridge, error) {
	o.TTL = cmp.Or(o.TTL, schema.DefaultTTL)
	b := &Bridge{o: o, warnings: warnings{log: o.Log, minute: rate.Sometimes{Interval: time.Minute}}, members: make(map[instance.Key]*member), finished: make(chan *member)}
	// An engine has one connection. The connection of a crashed engine stays until the
	// kernel notices.
	bounds := zmq.Bounds{Peers: 4 * maxInstances, Bytes: 8 << 10, Frames: 4}
	l, err := zmq.Listen(ctx, zmq.Router, o.Endpoint, bounds, b.warnings.warn)
	if err != nil {
		return nil, fmt.Errorf("registration by ZeroMQ: %w", err)
	}
	b.listener = l
	// The suffix distinguishes this bridge from other bridges and agents of the machine, so
	// that none of them takes over a key of another.
	_, port, _ := net.SplitHostPort(l.Addr().String())
	b.o.HostID += "/zmq:" + port
	return b, nil
}

// Addr returns the address of the ROUTER.
func (b *Bridge) Addr() net.Addr { return b.listener.Addr() }

// Close closes a bridge whose Run was not called.
func (b *Bridge) Close() error { return b.listener.Close() }

// sweeps is the number of checks for missing pings per TTL.
const sweeps = 20

// Run processes pings until ctx ends, and closes the ROUTER. The registrations stay in etcd until
// their leases expire: a bridge that is restarted before then takes them over.
func (b *Bridge) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer b.running.Wait()
	defer cancel()
	messages := make(chan zmq.Message)
	b.running.Go(func() {
		for {
			m, err := b.listener.Receive(ctx)
			if err != nil {
				return
			}
			select {
			case messages <- m:
			case <-ctx.Done():
				return
			}
		}
	})
	b.o.Log.WithField("address", b.Addr().String()).Info("engines may register by ZeroMQ")
	tick := time.NewTicker(max(b.o.TTL/sweeps, 10*time.Millisecond))
	defer tick.Stop()
	b.swept = time.Now()
	for {
		select {
		case <-ctx.Done():
			err := b.listener.Close()
			return errors.Join(err, context.Cause(ctx))
		case m := <-messages:
			b.handle(ctx, m, time.Now())
		case m := <-b.finished:
			if b.members[m.ping.Key] == m {
				delete(b.members, m.ping.Key)
				b.counts.instances.Store(int64(len(b.members)))
			}
		case <-tick.C:
			b.sweep(time.Now())
		}
	}
}

// handle processes one message.
func (b *Bridge) handle(ctx context.Context, m zmq.Message, now time.Time) {
	if len(m.Frames) != 1 {
		b.warnings.warn(m.Remote, fmt.Errorf("%w: %d frames", ErrPing, len(m.Frames)))
		b.counts.refused.Add(1)
		return
	}
	p, err := ParsePing(m.Frames[0])
	known := cmp.Or(b.members[p.Key], b.members[p.Key.Other()]) // a MoRI-IO engine has one role
	switch {
	case errors.Is(err, ErrHello):
	case err != nil:
		b.counts.refused.Add(1)
		b.warnings.warn(m.Remote, err)
	case known == nil:
		if err := b.join(ctx, p, now); err != nil {
			b.counts.refused.Add(1)
			b.warnings.warn(m.Remote, fmt.Errorf("%s: %w", p.Key, err))
		}
	case known.ping == p:
		b.counts.pings.Add(1)
		known.pinged = now
	case now.Sub(known.pinged) < b.o.TTL/2:
		b.counts.refused.Add(1)
		b.warnings.warn(m.Remote, fmt.Errorf("%s: two engines with different roles, addresses, sizes or modes ping as this instance: stop one of them", p.Key))
	default:
		b.lose(known, "the engine was restarted with another role, other addresses, sizes or another mode")
	}
}

// join begins a registration.
func (b *Bridge) join(ctx context.Context, p Ping, now time.Time) error {
	switch {
	case len(b.members) >= maxInstances:
		return errors.New("too many instances ping")
	case instance.IsLoopback(p.Key.Address) && !b.o.AllowLoopback:
		return errors.New("it says that it is on loopback, where proxies on other machines would not find it: start the engine with VLLM_HOST_IP or host_ip")
	}
	registered, leave := context.WithCancel(ctx)
	m := &member{ping: p, pinged: now, leave: leave, log: b.o.Log.WithField("instance", p.Key.String())}
	b.members[p.Key] = m
	b.counts.pings.Add(1)
	b.counts.registrations.Add(1)
	b.counts.instances.Store(int64(len(b.members)))
	m.log.WithFields(logrus.Fields{"zmq_address": p.ZMQ.String(), "transfer_mode": p.Mode, "dp_size": p.DPSize, "tp_size": p.TPSize}).
		Info("an engine registers by ZeroMQ")
	b.running.Go(func() {
		defer leave()
		m.run(ctx, registered.Done(), &b.o)
		select {
		case b.finished <- m:
		case <-ctx.Done():
		}
	})
	return nil
}

// sweep removes instances whose pings have ended. Time in which this process was suspended does not
// count: after it, each instance has a whole TTL for its next ping.
func (b *Bridge) sweep(now time.Time) {
	gap := now.Sub(b.swept)
	b.swept = now
	asleep := gap > b.o.TTL/2
	for _, m := range b.members {
		switch {
		case asleep:
			m.pinged = now // not later by the gap: a ping may have been handled before this sweep
		case now.Sub(m.pinged) >= b.o.TTL:
			b.lose(m, "its pings have ended")
		}
	}
}

// lose removes an instance; its run ends later.
func (b *Bridge) lose(m *member, why string) {
	if m.ended {
		return
	}
	m.ended = true
	b.counts.lost.Add(1)
	m.log.Warn(why + ": removing the instance")
	m.leave()
}

// Counts are the counters of a Bridge since it was bound.
type Counts struct {
	Instances int64 // registered now, or about to be
	// Pings is the number of accepted pings, Refused that of other messages: invalid, or of an
	// engine that cannot be registered.
	Pings, Refused int64
	// Registrations is the number of registrations begun, Lost that of those ended: the pings
	// ended, or the engine returned with other addresses.
	Registrations, Lost int64
}

// counts has the counters of Counts.
type counts struct{ instances, pings, refused, registrations, lost atomic.Int64 }

// Counts returns the counters. It is safe for concurrent use.
func (b *Bridge) Counts() Counts {
	c := &b.counts
	return Counts{
		Instances: c.instances.Load(), Pings: c.pings.Load(), Refused: c.refused.Load(),
		Registrations: c.registrations.Load(), Lost: c.lost.Load(),
	}
}

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
