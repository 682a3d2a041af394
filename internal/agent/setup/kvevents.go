package setup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Ports for KV events if the command has no endpoint: vLLM's default port while it is free, else
// a range derived from the engine's port, below the ranges of NIXL's side channels.
const (
	eventsDefault = 5557
	eventsFirst   = 10557
	eventsRange   = 16 // ports for each engine
	eventsEngines = 250
	eventsUse     = "kv-events" // in claims
)

// ErrEventsTaken is returned if a port of the engine's KV events is in use; vLLM would exit.
var ErrEventsTaken = errors.New("the port of the engine's KV events is already in use")

// kvEvents has the endpoints at which a wrapped engine publishes KV events. The zero value
// is for an engine that publishes none.
type kvEvents struct {
	vllmargs.Events
	ranks   vllmargs.Ranks
	Command []string // with the chosen endpoints; nil if unchanged
	claim
}

// findEvents reads the endpoint of the engine's publisher, or chooses one.
func (f *facts) findEvents(c *Config) {
	e := kvEvents{Events: f.command.Events, ranks: f.command.Ranks}
	if !f.wrapped || !e.Publishes || e.ranks.Elsewhere() {
		return
	}
	switch {
	case e.Endpoint == "":
		f.place(&e, c)
	case vllmargs.Inside(e.Endpoint):
		f.notes = append(f.notes, fmt.Sprintf("the engine's KV events cannot be followed: %s is reached from inside this machine only, and proxies connect by TCP: write tcp://*:%d, or leave endpoint out",
			instance.Printable(e.Endpoint, 80), eventsDefault))
	case !vllmargs.Binds(e.Endpoint) && e.subscribed():
		f.notes = append(f.notes, fmt.Sprintf("the engine's KV events cannot be followed: its publisher connects to %s, as it does to every endpoint without a wildcard, for a subscriber there; proxies connect to the engine: write tcp://*:%d, or leave endpoint out",
			instance.Printable(e.Endpoint, 80), eventsDefault))
	case !vllmargs.Binds(e.Endpoint):
		given := e.Endpoint
		f.place(&e, c)
		f.notes = append(f.notes, fmt.Sprintf("the engine's KV events: its publisher would connect to %s, this machine, where no subscriber listens; proxies connect to the publisher, so it listens at %s instead",
			instance.Printable(given, 80), e.Endpoint))
	case vllmargs.EndpointPort(e.Endpoint) == 0:
		f.notes = append(f.notes, "where the engine publishes KV events ("+instance.Printable(e.Endpoint, 80)+") is known when it runs: proxies ask it, which engines before vLLM 0.31 do not answer")
	}
	if host, _, err := net.SplitHostPort(c.Key.Address); err == nil {
		c.Facts.KVEvents = e.Sources(host, e.ranks)
	}
	c.Events = e
}

// place chooses the endpoints of the publisher and adds them to the engine's command.
func (f *facts) place(e *kvEvents, c *Config) {
	e.choose(c.Key.Address)
	command, err := e.SetIn(c.Command)
	if err != nil {
		f.wrong(err)
	}
	e.Command = command
}

// subscribed reports whether there may be a subscriber at the endpoint that the publisher
// connects to: on another machine, or on this one if the port is in use and no other agent has
// chosen it.
func (e *kvEvents) subscribed() bool {
	host, port := vllmargs.EndpointHost(e.Endpoint), vllmargs.EndpointPort(e.Endpoint)
	if port == 0 || !bindable(host, 0) {
		return true
	}
	if !e.take(eventsUse, port) {
		return false
	}
	e.Release()
	for rank := e.ranks.First; rank < e.span(); rank++ {
		if !bindable(host, port+rank) {
			return true
		}
	}
	return false
}

// bindable reports whether a host is this machine and the port is free.
func bindable(host string, port int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second) // a name may have to be looked up
	defer cancel()
	return bind(ctx, net.JoinHostPort(host, strconv.Itoa(port))) == nil
}

// bind listens at an address, closes the listener, and returns the error of listening.
func bind(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err == nil {
		_ = l.Close()
	}
	return err
}

// span returns one more than the highest rank that is started here.
func (e *kvEvents) span() int { return e.ranks.First + max(e.ranks.Local, 1) }

// choose takes the first range of ports that is free and that no other agent has reserved.
// If the command has no replay endpoint, from which proxies fetch missed events, it adds one.
func (e *kvEvents) choose(engine string) {
	at := ((portOf(engine)-enginePort)%eventsEngines + eventsEngines) % eventsEngines
	replay := e.Replay
	for i := range eventsEngines + 1 {
		port := eventsDefault
		if i > 0 {
			port = eventsFirst + (at+i-1)%eventsEngines*eventsRange
		}
		e.Endpoint = fmt.Sprintf("tcp://*:%d", port)
		if replay == "" {
			e.Replay = fmt.Sprintf("tcp://*:%d", port+e.span())
		}
		if !e.take(eventsUse, port) {
			continue
		}
		if e.Free(context.Background()) == nil {
			return
		}
		e.Release()
	}
	e.Endpoint, e.Replay = vllmargs.DefaultEvents, replay // Free reports the port conflict at the start
}

// Free returns an error if a port is in use: vLLM would exit.
func (e *kvEvents) Free(ctx context.Context) error {
	for _, endpoint := range []string{e.Endpoint, e.Replay} {
		port := vllmargs.EndpointPort(endpoint)
		if !e.Publishes || port == 0 || endpoint == e.Endpoint && !vllmargs.Binds(endpoint) {
			continue
		}
		for rank := e.ranks.First; rank < e.span(); rank++ {
			address := net.JoinHostPort(vllmargs.EndpointHost(endpoint), strconv.Itoa(port+rank))
			if errors.Is(bind(ctx, address), syscall.EADDRINUSE) {
				return fmt.Errorf("%w (%s): another engine? vLLM would exit: set another endpoint in --kv-events-config, or remove endpoint, and the agent chooses a free one", ErrEventsTaken, address)
			}
		}
	}
	return nil
}

// Argv returns the command line that starts the engine.
func (c *Config) Argv() []string {
	if c.Events.Command != nil {
		return c.Events.Command
	}
	return c.Command
}
