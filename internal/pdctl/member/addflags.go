package member

import (
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// forever is --wait without a value.
const forever = "forever"

// addFlags are the flags of add.
type addFlags struct {
	model, connector, reason             string
	wait                                 string
	block, noVerify, https, strict, loop bool

	init, alloc, host string // of LMCache's PD backend

	ranks int // number of data-parallel ranks

	limit time.Duration    // of --wait; 0 for none
	ports map[string][]int // of LMCache
}

func (f *addFlags) register(fs *pflag.FlagSet, engines *session.Engines) {
	fs.SortFlags = false
	fs.StringVar(&f.model, "model", "", "add only instances that serve this model (any id or root; the last part of a path is enough)")
	fs.BoolVar(&f.strict, "strict-model", false, "compare the whole name of the model")
	fs.StringVar(&f.connector, "connector", "", "KV connector of the instance: "+strings.Join(connector.Names(), ", ")+", or the name of vLLM's class; empty leaves it to the proxies")
	fs.IntVar(&f.ranks, "dp-size", 0, "number of data-parallel ranks of the engine (vllm serve --data-parallel-size); proxies choose among ranks; 0: proxies detect it")
	fs.StringVar(&f.init, "lmcache-init-port", "", "pd_peer_init_port of a decode engine with LMCache's PD backend; one port for each rank, separated by commas")
	fs.StringVar(&f.alloc, "lmcache-alloc-port", "", "pd_peer_alloc_port of that engine, in the same form")
	fs.StringVar(&f.host, "lmcache-host", "", "host by which prefill engines reach these ports (default: that of the address)")
	fs.StringVar(&f.wait, "wait", "", "add an address as soon as it answers; `--wait=10m` ends after that time")
	fs.Lookup("wait").NoOptDefVal = forever // "--wait" alone
	fs.BoolVar(&f.block, "block", false, "with --wait: return when every address is added or given up")
	fs.BoolVar(&f.noVerify, "no-verify", false, "add without a query to the instance; proxies probe it")
	fs.BoolVar(&f.https, "https", false, "the instances speak HTTPS")
	engines.Register(fs)
	fs.StringVar(&f.reason, "reason", "", "reason, for the audit log")
	fs.BoolVar(&f.loop, "allow-loopback", false, "add a loopback address although etcd is on another machine")
}

// check refuses conflicting flags and parses the others.
func (f *addFlags) check(s *session.Session, keys []instance.Key) error {
	switch {
	case f.noVerify && f.wait != "":
		return cli.Wrongf("--no-verify and --wait exclude each other: one adds at once, the other when it answers")
	case f.noVerify && f.model != "":
		return cli.Wrongf("--model cannot be checked with --no-verify")
	case f.strict && f.wait != "":
		return cli.Wrongf("--strict-model and --wait exclude each other: the proxy that adds the instance later compares names as usual")
	case f.block && s.Dry.On:
		return cli.Wrongf("--dry-run and --block exclude each other: a dry run adds nothing to wait for")
	case f.block && f.wait == "":
		return cli.Wrongf("--block needs --wait")
	}
	if f.ranks < 0 || f.ranks > instance.MaxRanks {
		return cli.Wrongf("--dp-size %d: must be a number of data-parallel ranks, 1 to %d", f.ranks, instance.MaxRanks)
	}
	dialect, err := connector.Canonical(f.connector)
	if err != nil {
		return cli.Wrongf("--connector: %w", err)
	}
	if err := f.readPorts(dialect, keys[0].Role); err != nil {
		return err
	}
	if f.wait != "" && f.wait != forever {
		d, err := settings.Duration(f.wait)
		if err != nil || d < time.Second {
			return cli.Wrongf("--wait=%s: write a duration of at least a second, e.g. --wait=10m", instance.Printable(f.wait, 40))
		}
		f.limit = d
	}
	for _, k := range keys {
		if instance.IsLoopback(k.Address) && !s.Etcd.Local() && !f.loop {
			return cli.Wrongf("%s is a loopback address, but etcd is on another machine, and proxies there would connect to themselves: use an address that other machines can reach, or --allow-loopback", k.Address)
		}
	}
	return nil
}

// readPorts parses the ports at which prefill instances reach the ranks of an LMCache decode
// engine.
func (f *addFlags) readPorts(dialect string, role instance.Role) error {
	given := f.init+f.alloc+f.host != ""
	switch {
	case given && (dialect != lmcacheDialect || role == instance.Prefill):
		return cli.Wrongf("--lmcache-init-port, --lmcache-alloc-port and --lmcache-host are for decode instances with --connector %s", lmcacheDialect)
	case dialect != lmcacheDialect || role == instance.Prefill:
		return nil
	}
	lists := make([][]int, 2)
	for i, flag := range []struct{ name, value string }{{"lmcache-init-port", f.init}, {"lmcache-alloc-port", f.alloc}} {
		list, err := lmcache.Ports(flag.value)
		if err != nil {
			return cli.Wrongf("--%s: %w", flag.name, err)
		}
		if list == nil {
			return cli.Wrongf("--%s is missing: set the ports of LMCache's pd_peer_init_port and pd_peer_alloc_port, one of each for every rank; without them no prefill instance can send its KV cache", flag.name)
		}
		lists[i] = list
	}
	if len(lists[0]) != len(lists[1]) {
		return cli.Wrongf("%d ports in --lmcache-init-port and %d in --lmcache-alloc-port: must be one of each for every rank", len(lists[0]), len(lists[1]))
	}
	f.ports = map[string][]int{instance.PortLMCacheInit: lists[0], instance.PortLMCacheAlloc: lists[1]}
	return nil
}

// lmcacheDialect is the dialect of LMCache's PD backend.
const lmcacheDialect = "lmcache"
