package setup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"syscall"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// envBootstrapPort is vLLM's variable for the port of Mooncake's bootstrap server.
const envBootstrapPort = "VLLM_MOONCAKE_BOOTSTRAP_PORT"

// mooncakeDialect is the dialect whose prefill engines have a bootstrap server.
const mooncakeDialect = "mooncake"

// ErrBootstrapTaken is returned if another program listens at the engine's bootstrap port.
var ErrBootstrapTaken = errors.New("the port of the engine's bootstrap server is already in use")

// bootstrapServer is the port at which a wrapped engine starts a bootstrap server; 0 if it starts none.
type bootstrapServer int

// Free returns an error if the port is in use: without the server the engine is never ready.
func (b bootstrapServer) Free(ctx context.Context) error {
	address := net.JoinHostPort("0.0.0.0", strconv.Itoa(int(b))) // where vLLM listens
	if b > 0 && errors.Is(bind(ctx, address), syscall.EADDRINUSE) {
		return fmt.Errorf("%w (%s): another engine? The engine would never be ready: set another port with %s", ErrBootstrapTaken, address, envBootstrapPort)
	}
	return nil
}

// findBootstrap returns the address at which the agent queries the bootstrap server of a
// Mooncake prefill engine; "" for other engines. Proxies combine the port of the record with
// the host of the instance.
func (r *reader) findBootstrap(f *facts, c *Config, dialect string) string {
	const name = "bootstrap-port"
	if dialect == mooncakeDialect {
		r.checkMooncakeRole(f, c.Key.Role)
	}
	if dialect != mooncakeDialect || c.Key.Role == instance.Decode {
		r.excludes(errors.New("a bootstrap port is for a prefill engine with MooncakeConnector"), name)
		return ""
	}
	host := ""
	if u, err := url.Parse(c.Engine); err == nil {
		host = u.Hostname()
	}
	found := []fact{{f.env(envBootstrapPort), envBootstrapPort}, {strconv.Itoa(instance.DefaultBootstrapPort), fromDefault}}
	m := f.transfer.Mooncake()
	if m != nil && m.Bootstrap != "" {
		server := m.Bootstrap
		at, port, err := net.SplitHostPort(server)
		if err != nil {
			r.wrong(fmt.Errorf("%s: bootstrap_server_address %q is not host:port", f.from, instance.Printable(server, 80)))
			return ""
		}
		if instanceHost, _, _ := net.SplitHostPort(c.Key.Address); at != host && at != instanceHost && !instance.IsLoopback(server) {
			r.wrong(fmt.Errorf("%s: bootstrap_server_address %s is not on the engine's machine: proxies query it at the engine's address, %s",
				f.from, instance.Printable(server, 80), c.Key.Address))
			return ""
		}
		host, found = at, []fact{{port, f.from + " (bootstrap_server_address)"}}
	}
	port := r.port(name, found...)
	if port == 0 {
		return ""
	}
	if f.wrapped && m != nil && m.Bootstrap == "" && !f.command.Ranks.Elsewhere() {
		own, _ := strconv.Atoi(cmp.Or(f.env(envBootstrapPort), strconv.Itoa(instance.DefaultBootstrapPort)))
		c.BootstrapServer = bootstrapServer(own) // --bootstrap-port does not change it
	}
	c.Facts.Ports = map[string][]int{instance.PortBootstrap: {port}}
	c.Facts.EngineIDs = nil // the server publishes them, with the suffix that vLLM adds
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// checkMooncakeRole refuses a role for which the first request would make the engine exit.
func (r *reader) checkMooncakeRole(f *facts, role instance.Role) {
	m := f.transfer.Mooncake()
	if m == nil {
		return
	}
	if is, ok := m.Role(); ok && role != "" && is != role {
		r.fail("role", fmt.Errorf("%s, but %s has %s: a request for the other role ends a Mooncake engine", role, f.from, m.KVRole))
	}
}
