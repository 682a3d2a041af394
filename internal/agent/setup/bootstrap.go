package setup

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/bootstrap"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/vllmargs"
)

// envBootstrapPort is the variable by which vLLM is told the port of Mooncake's
// bootstrap server.
const envBootstrapPort = "VLLM_MOONCAKE_BOOTSTRAP_PORT"

// mooncakeDialect is the one whose prefill engines have a bootstrap server.
const mooncakeDialect = "mooncake"

var errBootstrapPort = errors.New("a bootstrap port is for a prefill engine with MooncakeConnector")

// findBootstrap is where the bootstrap server of a Mooncake prefill engine is asked
// from here; "" for every other engine. Its port goes into the record, where proxies
// put it behind the host of the instance.
func (r *reader) findBootstrap(f *facts, c *Config) string {
	const name = "bootstrap-port"
	dialect, _ := connector.Canonical(c.connector)
	if dialect == mooncakeDialect {
		r.checkMooncakeRole(f, c.Key.Role)
	}
	if dialect != mooncakeDialect || c.Key.Role == instance.Decode {
		if r.FromFlag(name) {
			r.fail(name, errBootstrapPort)
		}
		return ""
	}
	host := ""
	if u, err := url.Parse(c.Engine); err == nil {
		host = u.Hostname()
	}
	found := []fact{{f.env(envBootstrapPort), envBootstrapPort}, {strconv.Itoa(bootstrap.DefaultPort), fromDefault}}
	if m := f.mooncake(); m != nil && m.Bootstrap != "" {
		server := m.Bootstrap
		at, port, err := net.SplitHostPort(server)
		if err != nil {
			r.wrong(fmt.Errorf("%s: bootstrap_server_address %q is no host:port", f.from, instance.Printable(server, 80)))
			return ""
		}
		if instanceHost, _, _ := net.SplitHostPort(c.Key.Address); at != host && at != instanceHost && !instance.IsLoopback(server) {
			r.wrong(fmt.Errorf("%s: bootstrap_server_address %s is not on the engine's machine: proxies look for it at the engine's own address, %s",
				f.from, instance.Printable(server, 80), c.Key.Address))
			return ""
		}
		host, found = at, []fact{{port, f.from + " (bootstrap_server_address)"}}
	}
	text := r.text(name, found...)
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		r.fail(name, fmt.Errorf("%q is no port", instance.Printable(text, 40)))
		return ""
	}
	c.Facts.Ports = map[string][]int{instance.PortBootstrap: {port}}
	c.Facts.EngineIDs = nil // the server has them, with what vLLM adds to each
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// checkMooncakeRole refuses what would end the engine with its first request.
func (r *reader) checkMooncakeRole(f *facts, role instance.Role) {
	m := f.mooncake()
	if m == nil {
		return
	}
	if is, ok := m.Role(); ok && role != "" && is != role {
		r.fail("role", fmt.Errorf("%s, but %s says %s: a request for the other role ends a Mooncake engine", role, f.from, m.KVRole))
	}
}

// mooncake is what is said of vLLM's MooncakeConnector, nil if nothing is.
func (f *facts) mooncake() *vllmargs.Transfer {
	if f.transfer == nil {
		return nil
	}
	return f.transfer.Mooncake()
}
