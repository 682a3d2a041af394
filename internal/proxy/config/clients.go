package config

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Clients has the listener for clients and the instances of the command line.
type Clients struct {
	Host string // address to listen on: an IP or a host name, no port
	Port int    // 0 = any free port

	Model     string // model that instances must serve; "" = any
	Connector string // dialect of instances whose record names none

	// Instances named on the command line, canonical host:port, no duplicates.
	Prefill []string
	Decode  []string

	// DecodePorts are named ports of decode instances, by address; see
	// instance.PortLMCacheInit. Only LMCache's command line sets them.
	DecodePorts map[string]map[string][]int

	// ZMQRegister is the address at which MoRI-IO engines register themselves,
	// tcp://host:port; "" disables it.
	ZMQRegister string
}

func (cl *Clients) settings() settings.Table {
	return settings.About("Listener and instances",
		settings.Setting{Name: "host", Kind: settings.Text, Default: "127.0.0.1", Usage: "address to listen on", Into: &cl.Host},
		settings.Setting{Name: "port", Kind: settings.Number, Default: "8000", Usage: "port to listen on; 0 takes any free one", Into: &cl.Port},
		settings.Setting{Name: "model", Short: "m", Kind: settings.Text, Usage: "model that every instance must serve; empty allows any", Into: &cl.Model},
		settings.Setting{Name: "connector", Kind: settings.Text, Default: "plain", Usage: "KV transfer of instances whose record names none: " + strings.Join(connector.Names(), ", ") + ", or the name of vLLM's class", Into: &cl.Connector},
		settings.Setting{Name: "prefill", Short: "p", Kind: settings.List, Spread: true, Usage: "prefill instances, host:port; separate several by spaces or commas, or repeat the flag", Into: &cl.Prefill},
		settings.Setting{Name: "decode", Short: "d", Kind: settings.List, Spread: true, Usage: "decode instances, in the same form as --prefill", Into: &cl.Decode},
		settings.Setting{Name: "zmq-register", Kind: settings.Text, Rare: true, Usage: "tcp://host:port at which MoRI-IO engines register themselves (vLLM's examples use port 36367); each is registered in etcd while it sends pings; empty disables this", Into: &cl.ZMQRegister},
	)
}

// complete brings the addresses of instances into canonical form.
func (cl *Clients) complete(c *complaints) {
	cl.Prefill = canonical(c, "prefill", cl.Prefill)
	cl.Decode = canonical(c, "decode", cl.Decode)
}

// canonical returns the canonical form of addresses without duplicates.
func canonical(c *complaints, name string, list []string) []string {
	out := list[:0:0]
	for _, item := range list {
		address, err := instance.ParseAddress(item)
		if err != nil {
			c.bad(name, "%w", err)
		} else if !slices.Contains(out, address) {
			out = append(out, address)
		}
	}
	return out
}

// check validates the settings and replaces the connector by its short name.
func (cl *Clients) check(c *complaints, access *Access) {
	if err := checkHost(cl.Host); err != nil {
		c.bad("host", "%w", err)
	}
	if cl.Port < 0 || cl.Port > 65535 {
		c.bad("port", "invalid port %d: use 1 to 65535, or 0 for any free one", cl.Port)
	}
	if cl.Model != instance.Printable(cl.Model, 0) || len(cl.Model) > 512 {
		c.bad("model", "invalid model name %q", instance.Printable(cl.Model, 80))
	}
	switch short, err := connector.Canonical(cl.Connector); {
	case err != nil:
		c.bad("connector", "%w", err)
	case short == "":
		c.bad("connector", "%q is not known; use %s, or the name of vLLM's class", cl.Connector, strings.Join(connector.Names(), " or "))
	default:
		cl.Connector = short
	}
	if cl.ZMQRegister != "" {
		if _, err := zmq.ParseEndpoint(cl.ZMQRegister); err != nil {
			c.bad("zmq-register", "%v", err)
		}
	}
	cl.checkInstances(c, access)
}

// checkInstances checks the addresses of instances and that InstanceAllow contains them.
func (cl *Clients) checkInstances(c *complaints, access *Access) {
	check := func(name string, list []string) {
		for _, item := range list {
			address, err := instance.ParseAddress(item)
			if err != nil {
				c.bad(name, "%w", err)
				continue
			}
			if ap, err := netip.ParseAddrPort(address); err == nil && access.InstanceAllow != nil && !access.allows(ap.Addr()) {
				c.bad(name, "%s is outside the networks of --instance-allow; add it there", address)
			}
		}
	}
	check("prefill", cl.Prefill)
	check("decode", cl.Decode)
}
