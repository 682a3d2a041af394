package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime"
	"strconv"
	"syscall"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The variables of vLLM for NIXL's side channel. Rank r of a data-parallel group listens at
// the port plus r; tensor-parallel ranks share a port.
const (
	EnvSidePort = "VLLM_NIXL_SIDE_CHANNEL_PORT"
	envSideHost = "VLLM_NIXL_SIDE_CHANNEL_HOST"
)

// Ports for side channels. An engine at vLLM's default port gets vLLM's default. Any other
// engine gets a range derived from its port, so that engines do not collide and keep their
// ports. The ranges are below the ports that the system assigns to clients.
const (
	sideDefault = 5600
	sideFirst   = 15600
	sideRange   = 16 // ports for each engine
	sideEngines = 1000
	enginePort  = 8000
)

// ErrSideTaken is returned if a port of the side channel is in use; vLLM reports no error then.
var ErrSideTaken = errors.New("the port of NIXL's side channel is already in use")

// sideChannel has the address at which a wrapped NIXL engine listens for its peers. The zero
// value is for an engine without a side channel.
type sideChannel struct {
	host   string
	port   int // of rank 0
	first  int // first rank that is started here
	count  int // number of ranks that are started here
	Chosen bool
	claim
}

// findSideChannel takes the port from the engine's environment, or chooses one.
func (f *facts) findSideChannel(engine string) sideChannel {
	if !f.wrapped || !f.transfer.NIXL() || f.command.Ranks.Elsewhere() {
		return sideChannel{}
	}
	s := sideChannel{host: "localhost", first: f.command.Ranks.First, count: max(1, f.command.Ranks.Local)}
	if h := f.env(envSideHost); h != "" {
		s.host = h
	} else if !instance.IsLoopback(engine) && engine != "" {
		f.notes = append(f.notes, envSideHost+" is not set: engines on other machines cannot fetch from this one; set it to an address of this machine")
	}
	if text := f.env(EnvSidePort); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n+s.first+s.count-1 > 65535 {
			f.wrong(fmt.Errorf("%s=%q is not a port, or leaves less than %d ports after it", EnvSidePort, instance.Printable(text, 40), s.count))
		}
		s.port = n
		return s
	}
	s.choose(engine)
	return s
}

// choose takes the first range of ports that is free and that no other agent has reserved, beginning
// with the engine's own range.
func (s *sideChannel) choose(engine string) {
	port := portOf(engine)
	s.Chosen = true
	at := ((port-enginePort)%sideEngines + sideEngines) % sideEngines
	if s.port = sideFirst + at*sideRange; port == enginePort {
		s.port = sideDefault
	}
	own := s.port
	for i := 1; i < sideEngines; i++ {
		if s.last() <= 65535 && s.take("nixl", s.port) {
			if s.Free(context.Background()) == nil {
				return
			}
			s.Release()
		}
		s.port = sideFirst + (at+i)%sideEngines*sideRange
	}
	s.port = own // Free reports the port conflict at the start
}

// portOf returns the port of an engine's address, or vLLM's default port without an address.
func portOf(engine string) int {
	_, text, _ := net.SplitHostPort(engine)
	if port, err := strconv.Atoi(text); err == nil {
		return port
	}
	return enginePort
}

func (s *sideChannel) last() int { return s.port + s.first + s.count - 1 }

// Free returns an error if a port is in use: vLLM would report no error, and never answer.
func (s *sideChannel) Free(ctx context.Context) error {
	for n := s.port + s.first; s.port > 0 && n <= s.last(); n++ {
		address := net.JoinHostPort(s.host, strconv.Itoa(n))
		if errors.Is(bind(ctx, address), syscall.EADDRINUSE) {
			return fmt.Errorf("%w (%s): another engine? vLLM would never answer: set another port with %s, or remove it, and the agent chooses a free one", ErrSideTaken, address, EnvSidePort)
		}
	}
	return nil
}

// Env returns the variables for the engine.
func (s *sideChannel) Env() []string {
	if !s.Chosen {
		return nil
	}
	return []string{EnvSidePort + "=" + strconv.Itoa(s.port)}
}

// shown adds the ports to those of a record.
func (s *sideChannel) shown(ports map[string][]int) map[string][]int {
	if s.port == 0 {
		return ports
	}
	out := maps.Clone(ports)
	if out == nil {
		out = map[string][]int{}
	}
	for n := s.port + s.first; n <= s.last() && len(out[instance.PortNIXL]) < instance.MaxRanks; n++ {
		out[instance.PortNIXL] = append(out[instance.PortNIXL], n)
	}
	return out
}

// String describes the ports, "" if there are none.
func (s *sideChannel) String() string {
	switch {
	case s.port == 0:
		return ""
	case s.count == 1 && s.first == 0:
		return strconv.Itoa(s.port)
	}
	return fmt.Sprintf("%d (ranks %d to %d listen on %d to %d)", s.port, s.first, s.first+s.count-1, s.port+s.first, s.last())
}

// claim reserves a port among the agents of this machine until this agent exits; otherwise two agents
// that start at the same time could choose the same free port. The zero value reserves no port. It
// works like lock in package program.
type claim struct{ held io.Closer }

// take reserves a port for a use; it returns false if another agent has reserved it.
func (c *claim) take(use string, port int) bool {
	if runtime.GOOS != "linux" {
		return true
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", fmt.Sprintf("@pd-agent-%s-%d", use, port))
	if err != nil {
		return false
	}
	c.held = l
	return true
}

// Release releases the reserved port, if any.
func (c *claim) Release() {
	if c.held != nil {
		_ = c.held.Close()
		c.held = nil
	}
}

// The port of the P2P tier's side channel: vLLM's variable and default. Rank r of a
// data-parallel group listens at the port plus r, on whichever machine it runs.
const (
	envP2PPort     = "VLLM_P2P_SIDE_CHANNEL_PORT"
	defaultP2PPort = 5710
	p2pDialect     = "p2p"
)

// findP2P reads the port at which other engines fetch from an engine with a P2P tier. Proxies
// combine the port of the record, which is that of the first rank of the engine, with the host of
// the instance.
func (r *reader) findP2P(f *facts, c *Config, dialect string) {
	const name = "p2p-port"
	if dialect != p2pDialect {
		r.excludes(errors.New("a P2P port is for an engine whose OffloadingConnector has a tier of type p2p (--connector p2p)"), name)
		return
	}
	found := []fact{{f.env(envP2PPort), envP2PPort}, {strconv.Itoa(defaultP2PPort), fromDefault}}
	if tier := f.transfer.Offloading(); tier != nil && tier.Port > 0 {
		found = append([]fact{{strconv.Itoa(tier.Port), f.from + " (secondary_tiers)"}}, found...)
	}
	for i := range found {
		if base, err := strconv.Atoi(found[i].value); err == nil {
			found[i].value = strconv.Itoa(base + f.command.Ranks.First)
		}
	}
	if port := r.port(name, found...); port > 0 {
		c.Facts.Ports = map[string][]int{instance.PortP2P: {port}}
	}
}
