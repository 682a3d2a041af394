package setup

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// lmcacheDialect is the dialect of LMCache's PD backend.
const lmcacheDialect = "lmcache"

// errLMCacheRole is the error about a flag that does not apply to an engine.
var errLMCacheRole = errors.New("is for an engine of the other role, or of another connector")

// NoticeConfig has the addresses for LMCache's notifications and for proxies that read them.
type NoticeConfig struct {
	Endpoint string // tcp://host:port of the PULL socket; "" for none
	Listen   string // host:port for proxies; port 0 is any
}

// findLMCacheFile reads LMCache's configuration, if it has a PD backend.
func (f *facts) findLMCacheFile() {
	path, from := f.path("lmcache-config", lmcache.EnvConfig)
	if path == "" {
		return
	}
	c, err := lmcache.LoadConfig(path)
	switch {
	case err != nil && from == lmcache.EnvConfig:
		f.notes = append(f.notes, from+": "+err.Error()) // only the engine needs the file
	case err != nil:
		f.fail("lmcache-config", err)
	case c.Role != "":
		f.lmcache, f.lmcacheFrom = c, from+" "+path
	}
}

// findLMCache reads the settings of an LMCache engine with the PD backend.
func (r *reader) findLMCache(f *facts, c *Config, dialect string) NoticeConfig {
	if dialect != lmcacheDialect || c.Key.Role == instance.Decode {
		r.excludes(errLMCacheRole, "lmcache-notify", "lmcache-notify-listen")
	}
	if dialect != lmcacheDialect || c.Key.Role == instance.Prefill {
		r.excludes(errLMCacheRole, "lmcache-init-port", "lmcache-alloc-port", "lmcache-host")
	}
	if dialect != lmcacheDialect {
		return NoticeConfig{}
	}
	if c.Key.Role != instance.Prefill {
		r.findReceiver(f, c)
	}
	if c.Key.Role == instance.Decode {
		return NoticeConfig{}
	}
	n := NoticeConfig{Listen: r.Text("lmcache-notify-listen")}
	found := ""
	if file := f.lmcache; file.ProxyPort > 0 {
		host := file.ProxyHost
		ip := net.ParseIP(host)
		if here, _, _ := net.SplitHostPort(c.Key.Address); host == "localhost" || host == here || ip != nil && ip.IsLoopback() {
			found = "tcp://" + net.JoinHostPort(strings.Replace(host, "localhost", "127.0.0.1", 1), strconv.Itoa(file.ProxyPort))
		} else {
			f.notes = append(f.notes, "LMCache's notifications go to "+instance.Printable(host, 80)+", which is another host: with several proxies set pd_proxy_host to 127.0.0.1, so that this agent receives them")
		}
	}
	if n.Endpoint = r.text("lmcache-notify", fact{found, f.lmcacheFrom + " (pd_proxy_host, pd_proxy_port)"}); n.Endpoint == "" {
		return NoticeConfig{}
	}
	if _, err := zmq.ParseEndpoint(n.Endpoint); err != nil {
		r.fail("lmcache-notify", err)
	}
	if n.Listen == "" {
		host, _, _ := net.SplitHostPort(c.Key.Address)
		n.Listen = net.JoinHostPort(host, "0")
	}
	return n
}

// findReceiver reads the ports at which prefill instances reach the ranks of a decode engine.
func (r *reader) findReceiver(f *facts, c *Config) {
	ports := func(name string, found []int) []int {
		text := r.text(name, fact{join(found), f.lmcacheFrom})
		list, err := lmcache.Ports(text)
		switch {
		case err != nil:
			r.fail(name, err)
		case list == nil:
			r.fail(name, errors.New("is missing: set the ports of LMCache's pd_peer_init_port and pd_peer_alloc_port, one of each for every rank, or LMCACHE_CONFIG_FILE"))
		}
		return list
	}
	init, alloc := ports("lmcache-init-port", f.lmcache.Init), ports("lmcache-alloc-port", f.lmcache.Alloc)
	if init == nil || alloc == nil {
		return
	}
	if len(init) != len(alloc) {
		r.fail("lmcache-alloc-port", fmt.Errorf("%d ports, but %d of --lmcache-init-port: must be one of each for every rank", len(alloc), len(init)))
	}
	c.Facts.Ports = map[string][]int{instance.PortLMCacheInit: init, instance.PortLMCacheAlloc: alloc}
	host := f.lmcache.PeerHost
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && (ip.IsUnspecified() || ip.IsLoopback()) {
		host = "" // others reach it at the address of the instance
	}
	c.Facts.ReceiverHost = r.text("lmcache-host", fact{host, f.lmcacheFrom + " (pd_peer_host)"})
}

func join(ports []int) string {
	var parts []string
	for _, p := range ports {
		parts = append(parts, strconv.Itoa(p))
	}
	return strings.Join(parts, ",")
}
