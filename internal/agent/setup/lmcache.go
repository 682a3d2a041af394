package setup

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/lmcache"
	"github.com/pdmesh/pdmesh/internal/zmq"
)

// lmcacheDialect is the one of LMCache's PD backend.
const lmcacheDialect = "lmcache"

// The errors of flags that mean nothing for an engine.
var (
	errLMCacheRole = errors.New("is for an engine of the other role, or of another connector")
	errNoReceiver  = errors.New("is missing: give the ports of LMCache's pd_peer_init_port and pd_peer_alloc_port, one of each for every rank, or LMCACHE_CONFIG_FILE")
)

// NoticeConfig is where LMCache's notifications come in, and where proxies ask for them.
type NoticeConfig struct {
	Endpoint string // tcp://host:port of the PULL socket; "" for none
	Listen   string // host:port for proxies; port 0 is any
}

// findLMCacheFile reads LMCache's configuration; nil when there is none or it has no PD
// backend.
func (f *facts) findLMCacheFile() {
	path, from := f.Text("lmcache-config"), "--lmcache-config"
	if path == "" {
		path, from = f.env(lmcache.EnvConfig), lmcache.EnvConfig
	}
	if path == "" {
		return
	}
	c, err := lmcache.LoadConfig(path)
	switch {
	case err != nil && from == lmcache.EnvConfig:
		f.notes = append(f.notes, from+": "+err.Error()) // the engine's business
	case err != nil:
		f.fail("lmcache-config", err)
	case c.Role != "":
		f.lmcache, f.lmcacheFrom = &c, from+" "+path
	}
}

// findLMCache is what the record of an LMCache engine with the PD backend needs.
func (r *reader) findLMCache(f *facts, c *Config) NoticeConfig {
	dialect, _ := connector.Canonical(c.connector)
	of := map[instance.Role][]string{
		instance.Prefill: {"lmcache-notify", "lmcache-notify-listen"},
		instance.Decode:  {"lmcache-init-port", "lmcache-alloc-port", "lmcache-host"},
	}
	for role, names := range of {
		for _, name := range names {
			if r.FromFlag(name) && (dialect != lmcacheDialect || c.Key.Role == role.Other()) {
				r.fail(name, errLMCacheRole)
			}
		}
	}
	if dialect != lmcacheDialect {
		return NoticeConfig{}
	}
	said := lmcache.Config{}
	if f.lmcache != nil {
		said = *f.lmcache
	}
	if c.Key.Role != instance.Prefill {
		r.findReceiver(f, c, said)
	}
	if c.Key.Role == instance.Decode {
		return NoticeConfig{}
	}
	n := NoticeConfig{Listen: r.Text("lmcache-notify-listen")}
	found := ""
	if said.ProxyPort > 0 {
		host := said.ProxyHost
		ip := net.ParseIP(host)
		if here, _, _ := net.SplitHostPort(c.Key.Address); host == "localhost" || host == here || ip != nil && ip.IsLoopback() {
			found = "tcp://" + net.JoinHostPort(strings.Replace(host, "localhost", "127.0.0.1", 1), strconv.Itoa(said.ProxyPort))
		} else {
			f.notes = append(f.notes, "LMCache's notifications go to "+instance.Printable(host, 80)+", which is not here: with several proxies set pd_proxy_host to 127.0.0.1, and this agent hands them on")
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

// findReceiver is where prefill instances reach the ranks of a decode engine.
func (r *reader) findReceiver(f *facts, c *Config, said lmcache.Config) {
	ports := func(name string, found []int) []int {
		text := r.text(name, fact{join(found), f.lmcacheFrom})
		list, err := lmcache.Ports(text)
		switch {
		case err != nil:
			r.fail(name, err)
		case list == nil:
			r.fail(name, errNoReceiver)
		}
		return list
	}
	init, alloc := ports("lmcache-init-port", said.Init), ports("lmcache-alloc-port", said.Alloc)
	if init == nil || alloc == nil {
		return
	}
	if len(init) != len(alloc) {
		r.fail("lmcache-alloc-port", fmt.Errorf("%d ports beside %d of --lmcache-init-port: give one of each for every rank", len(alloc), len(init)))
	}
	c.Facts.Ports = map[string][]int{instance.PortLMCacheInit: init, instance.PortLMCacheAlloc: alloc}
	host := said.PeerHost
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
