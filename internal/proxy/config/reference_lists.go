package config

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// side has the flags of one role and the defaults of the script.
type side struct {
	setting     string // of ours
	into        *[]string
	hosts       string
	ports       string
	count       string // LMCache only
	defaultPort string
}

const defaultHost = "localhost"

// balance reads the lists of the load-balance proxy: one port for each host.
func (r *reference) balance() {
	for _, s := range []side{
		{setting: "prefill", into: &r.p.Prefill, hosts: "prefiller-hosts", ports: "prefiller-ports", defaultPort: "8001"},
		{setting: "decode", into: &r.p.Decode, hosts: "decoder-hosts", ports: "decoder-ports", defaultPort: "8002"},
	} {
		hosts, ports, ok := r.read(s)
		if !ok {
			continue
		}
		if len(hosts) != len(ports) {
			r.fail("--%s has %s and --%s %s: must be one port for each host", s.hosts, cli.Count(len(hosts), "host"), s.ports, cli.Count(len(ports), "port"))
			continue
		}
		r.put(s, hosts, ports)
	}
	if r.p.sources["connector"] == "" {
		r.p.Connector = "nixl"
		r.p.sources["connector"] = "the command line of " + string(formBalance)
	}
}

// lmcache reads LMCache's lists: a single host or port applies to all, and a number expands
// one host and one port to consecutive ports.
func (r *reference) lmcache() {
	for _, s := range []side{
		{setting: "prefill", into: &r.p.Prefill, hosts: "prefiller-host", ports: "prefiller-port", count: "num-prefillers", defaultPort: "8100"},
		{setting: "decode", into: &r.p.Decode, hosts: "decoder-host", ports: "decoder-port", count: "num-decoders", defaultPort: "8200"},
	} {
		hosts, ports, ok := r.read(s)
		count, countOK := r.count(s.count)
		if !ok || !countOK {
			continue
		}
		hosts, ports, consecutive := expand(hosts, ports, count)
		if len(hosts) != len(ports) {
			r.fail("--%s has %s and --%s %s: must be one port for each host, or one port or one host for all",
				s.hosts, cli.Count(len(hosts), "host"), s.ports, cli.Count(len(ports), "port"))
			continue
		}
		if count > 1 && !consecutive && count != len(hosts) {
			r.notice("--%s %d applies only to one host and one port; there are %d instances", s.count, count, len(hosts))
		}
		addresses := r.put(s, hosts, ports)
		if s.setting == "decode" {
			r.lmcachePorts(addresses, consecutive)
		}
	}
	if r.p.sources["connector"] == "" {
		r.p.Connector = "lmcache"
		r.p.sources["connector"] = "the command line of " + string(formLMCache)
	}
	if r.p.Connector == "plain" {
		r.notice("this is the command line of %s, and the connector is %q: no disagg_spec is sent, so decode instances find KV cache only in a store that they share with prefill instances, and compute the rest", formLMCache, r.p.Connector)
	}
	r.lmcacheChannel()
}

// lmcacheChannel sets the address for notifications of prefill instances, with the defaults of
// the script.
func (r *reference) lmcacheChannel() {
	if r.p.Connector != "lmcache" || r.p.LMCacheNotify != "" {
		return
	}
	host, port := strings.Trim(r.rawOr("proxy-host", defaultHost), "[]"), r.rawOr("proxy-port", "8500")
	if ports := r.portList("proxy-port", port); ports == nil {
		return
	}
	if host == defaultHost {
		host = "127.0.0.1"
	}
	r.p.LMCacheNotify = "tcp://" + net.JoinHostPort(host, port)
	r.p.sources["lmcache-notify"] = "the command line of " + string(formLMCache)
}

// lmcachePorts sets the LMCache ports of decode instances. With consecutive instances, the i-th has each
// port plus i.
func (r *reference) lmcachePorts(addresses []string, consecutive bool) {
	initPorts, allocPorts := r.portList("decoder-init-port", "8300"), r.portList("decoder-alloc-port", "8400")
	if r.changed("decoder-init-port") && r.changed("decoder-alloc-port") && initPorts != nil && allocPorts != nil && len(initPorts) != len(allocPorts) {
		r.fail("--decoder-init-port has %s and --decoder-alloc-port %s: must be one of each for every tensor parallel rank",
			cli.Count(len(initPorts), "port"), cli.Count(len(allocPorts), "port"))
		return
	}
	shift := func(flag string, ports []int, by int) []int {
		out := make([]int, len(ports))
		for i, port := range ports {
			if out[i] = port + by; out[i] > maxPort {
				r.fail("--%s: port %d plus %d for the last instance exceeds %d", flag, port, by, maxPort)
				return nil
			}
		}
		return out
	}
	ports := make(map[string]map[string][]int, len(addresses))
	for i, address := range addresses {
		by := 0
		if consecutive {
			by = i
		}
		ports[address] = map[string][]int{
			instance.PortLMCacheInit:  shift("decoder-init-port", initPorts, by),
			instance.PortLMCacheAlloc: shift("decoder-alloc-port", allocPorts, by),
		}
	}
	r.p.DecodePorts = ports
}

// read returns the hosts and ports of one role, with the defaults of the script.
func (r *reference) read(s side) (hosts []string, ports []int, ok bool) {
	ok = true
	if err := settings.Assign(&hosts, r.rawOr(s.hosts, defaultHost)); err != nil {
		r.fail("--%s: %w", s.hosts, err)
		ok = false
	}
	for _, h := range hosts {
		if err := checkHost(strings.Trim(h, "[]")); ok && err != nil {
			r.fail("--%s: %w; the port goes to --%s", s.hosts, err, s.ports)
			ok = false
		}
	}
	ports = r.portList(s.ports, s.defaultPort)
	if !r.changed(s.hosts) && !r.changed(s.ports) {
		r.notice("no %s instances on the command line: using %s:%s, the default of %s", s.setting, defaultHost, s.defaultPort, r.given[0].form)
	}
	return hosts, ports, ok && ports != nil
}

const maxPort = 65535

// portList parses a list of ports, whose default is def; it returns nil after an error.
func (r *reference) portList(flag, def string) []int {
	var items []string
	if err := settings.Assign(&items, r.rawOr(flag, def)); err != nil {
		r.fail("--%s: %w", flag, err)
		return nil
	}
	ports := make([]int, 0, len(items))
	for _, item := range items {
		port, err := strconv.Atoi(item)
		if err != nil || port < 1 || port > maxPort {
			r.fail("--%s: %w %q: must be a port from 1 to %d", flag, settings.ErrValue, instance.Printable(item, 80), maxPort)
			return nil
		}
		ports = append(ports, port)
	}
	return ports
}

// count returns the value of --num-...; default 1.
func (r *reference) count(flag string) (int, bool) {
	var n int
	if err := settings.Assign(&n, r.rawOr(flag, "1")); err != nil {
		r.fail("--%s: %w", flag, err)
		return 0, false
	}
	if n < 1 || n > 1000 {
		r.fail("--%s: %d is out of range; use 1 to 1000", flag, n)
		return 0, false
	}
	return n, true
}

// expand repeats a single host or port by LMCache's rules. consecutive reports whether the
// instances are on consecutive ports of one host.
func expand(hosts []string, ports []int, count int) (_ []string, _ []int, consecutive bool) {
	switch {
	case len(hosts) == 1 && len(ports) == 1:
		for i := 1; i < count; i++ {
			ports = append(ports, ports[0]+i)
		}
		return slices.Repeat(hosts, count), ports, count > 1
	case len(hosts) == 1:
		hosts = slices.Repeat(hosts, len(ports))
	case len(ports) == 1:
		ports = slices.Repeat(ports, len(hosts))
	}
	return hosts, ports, false
}

// put sets the instances of a role from one port for each host, and returns their addresses in order, or
// nil after an error.
func (r *reference) put(s side, hosts []string, ports []int) []string {
	flag := s.hosts
	if !r.changed(s.hosts) {
		flag = s.ports
	}
	addresses := make([]string, 0, len(hosts))
	for i, host := range hosts {
		address, err := instance.ParseAddress(net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(ports[i])))
		if err != nil {
			r.fail("--%s: %w", flag, err)
			return nil
		}
		addresses = append(addresses, address)
	}
	*s.into = addresses
	r.p.sources[s.setting] = "flag --" + flag
	return addresses
}
