package setup

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/engine/mooncake"
	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// fact is a value and its source.
type fact struct{ value, from string }

// facts has the values found in the engine's command line, its environment and mooncake.json.
// Settings take precedence over them.
type facts struct {
	*input
	lookup       func(string) (string, bool)
	command      vllmargs.Command
	wrapped      bool
	transfer     vllmargs.Transfer
	from         string // source of transfer
	mooncake     mooncake.Config
	mooncakeFrom string
	lmcache      lmcache.Config // zero without LMCache's PD backend
	lmcacheFrom  string
	envRole      string // the kv_role of VLLM_DISTRIBUTED_KV_ROLE
	notes        []string
}

// Sources of facts.
const (
	fromCommand = "the command"
	fromDefault = "default"
)

// find reads all sources. An unreadable source is an error if it was set for the agent, or if
// the engine cannot use it either.
func find(in *input, command []string, lookupEnv func(string) (string, bool)) *facts {
	f := &facts{input: in, lookup: lookupEnv, wrapped: len(command) > 0}
	if f.wrapped {
		c, err := vllmargs.ParseCommand(command)
		if err != nil {
			f.wrong(err)
		}
		f.command = c
		f.lookup = func(name string) (string, bool) { // as the engine will see it
			if v, ok := c.Env[name]; ok {
				return v, true
			}
			return lookupEnv(name)
		}
		if c.ConfigFile != "" {
			f.notes = append(f.notes, "the engine's --config "+instance.Printable(c.ConfigFile, 120)+" is not read by the agent: set its values for the agent, too")
		}
	}
	f.transfer, f.from = f.command.Transfer, "--kv-transfer-config of the command"
	if s := f.Text("kv-transfer-config"); s != "" {
		t, err := vllmargs.ParseTransfer(s)
		if err != nil {
			f.fail("kv-transfer-config", err)
		}
		f.transfer, f.from = t, "--kv-transfer-config"
	}
	if s := f.env(vllmargs.EnvKVRole); s != "" {
		role, err := vllmargs.ParseEnvRole(s)
		if err != nil && !f.Given("role") {
			f.wrong(err)
		}
		f.envRole = role
	}
	f.findMooncake()
	f.findLMCacheFile()
	return f
}

func (f *facts) env(name string) string {
	v, _ := f.lookup(name)
	return v
}

// path returns the path of a file from a setting or else a variable, and the name of that source.
func (f *facts) path(setting, variable string) (path, from string) {
	if path = f.Text(setting); path != "" {
		return path, "--" + setting
	}
	return f.env(variable), variable
}

func (f *facts) findMooncake() {
	path, from := f.path("mooncake-config", mooncake.EnvPath)
	if path == "" {
		return
	}
	c, err := mooncake.Load(path)
	switch {
	case err == nil:
		f.mooncake, f.mooncakeFrom = c, from+" "+path
	case from == mooncake.EnvPath && f.Given("etcd-endpoints"):
		f.notes = append(f.notes, from+": "+err.Error()) // only the engine needs the file
	case from == mooncake.EnvPath:
		f.wrong(fmt.Errorf("%s: %w; or set --etcd-endpoints", from, err))
	default:
		f.fail("mooncake-config", err)
	}
}

// endpoints returns the etcd endpoints of mooncake.json; nil without any, or if the setting is set.
func (f *facts) endpoints() []string {
	if f.mooncakeFrom == "" || f.Given("etcd-endpoints") {
		return nil
	}
	etcd, err := f.mooncake.Etcd()
	if err != nil {
		f.wrong(fmt.Errorf("%s: %w: set --etcd-endpoints, the host:port of the etcd that the proxies use (127.0.0.1:2379 for that of a proxy on this machine)", f.mooncakeFrom, err))
		return nil
	}
	f.Set("etcd-endpoints", etcd, f.mooncakeFrom+" (metadata_server)")
	return etcd
}

// roles returns the roles found without --role, by precedence.
func (f *facts) roles() []fact {
	var out []fact
	if role, ok := f.transfer.Role(); ok {
		out = append(out, fact{string(role), f.from})
	}
	if role, ok := vllmargs.RoleOf(f.envRole); ok {
		out = append(out, fact{string(role), vllmargs.EnvKVRole})
	}
	return out
}

// noRole returns the error about a missing role.
func (f *facts) noRole() error {
	switch {
	case f.transfer.KVRole != "":
		return fmt.Errorf("is missing: %s has %s, which leaves it open: %w", f.from, f.transfer.KVRole, errNoRole)
	case f.envRole != "":
		return fmt.Errorf("is missing: %s is both: %w", vllmargs.EnvKVRole, errNoRole)
	}
	return fmt.Errorf("is missing: %w", errNoRole)
}

// connectors returns the connector of the KV transfer.
func (f *facts) connectors() []fact {
	if f.Given("connector") {
		return nil
	}
	if f.lmcache.Role != "" && f.transfer.LMCache() {
		return []fact{{lmcacheDialect, f.lmcacheFrom}}
	}
	dialect, err := f.transfer.Dialect()
	if err != nil {
		f.wrong(fmt.Errorf("%s: %w", f.from, err))
	}
	return []fact{{dialect, f.from}}
}

// kvRole returns the kv_role of the record.
func (f *facts) kvRole(role instance.Role, connector string) string {
	byRole := map[instance.Role]string{instance.Prefill: "kv_producer", instance.Decode: "kv_consumer", instance.Both: "kv_both"}[role]
	switch {
	case f.transfer.KVRole != "":
		if other, ok := f.transfer.Role(); ok && role != "" && other != role {
			f.notes = append(f.notes, fmt.Sprintf("the role is %s, but %s has %s", role, f.from, f.transfer.KVRole))
		}
		return f.transfer.KVRole
	case connector != "", role == instance.Both:
		return byRole
	}
	return ""
}

// findAddress combines the port of the command with a host by which others reach this machine.
func (f *facts) findAddress(role instance.Role, etcdIsLocal bool) (fact, error) {
	switch {
	case !f.wrapped:
		return fact{}, &noAddressError{etcdIsLocal}
	case f.command.Port == 0:
		return fact{}, errors.New("is missing, and the command does not show the engine's port: set it to the host:port by which proxies reach the engine")
	}
	hosts := []fact{{f.command.Host, fromCommand}}
	if etcdIsLocal {
		hosts = append(hosts, fact{"127.0.0.1", fromCommand + ", as etcd is on this machine"})
	}
	hosts = append(hosts, fact{f.env("VLLM_HOST_IP"), "VLLM_HOST_IP and " + fromCommand})
	hosts = append(hosts, fact{f.mooncake.Host(role), f.mooncakeFrom + " and " + fromCommand})
	for _, h := range hosts {
		if h.value != "" && !wildcard(h.value) {
			return fact{net.JoinHostPort(h.value, strconv.Itoa(f.command.Port)), h.from}, nil
		}
	}
	return fact{}, fmt.Errorf("is missing: the command listens on every address of this machine: set it to the host:%d by which proxies reach the engine (or set VLLM_HOST_IP)", f.command.Port)
}

func wildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}

// findEngine returns the URL by which this machine reaches the engine that the command starts.
func (f *facts) findEngine() fact {
	if !f.wrapped || f.command.Port == 0 {
		return fact{}
	}
	scheme := "http://"
	if f.command.TLS {
		scheme = "https://"
	}
	return fact{scheme + instance.LocalAddress(f.command.Host, f.command.Port), fromCommand}
}

// models returns the model names by which the agent recognizes the engine, by precedence.
func (f *facts) models() []fact {
	out := []fact{{f.command.Model, fromCommand}}
	if len(f.command.Served) > 0 {
		return append([]fact{{f.command.Served[0], fromCommand + " (--served-model-name)"}}, out...)
	}
	return out
}

// keys returns the API keys of the engine, by precedence.
func (f *facts) keys() []fact {
	out := []fact{{f.command.APIKey, fromCommand}}
	if f.wrapped {
		out = append(out, fact{f.env("VLLM_API_KEY"), "VLLM_API_KEY"})
	}
	return append(out, fact{f.env("OPENAI_API_KEY"), "OPENAI_API_KEY"})
}

// labels returns the labels that are added to those of --label.
func (f *facts) labels() map[string]string {
	out := f.mooncake.Labels()
	if s := instance.Printable(f.transfer.Describe(), 0); s != "" && len(s) <= maxLabelSize {
		out["kv_connector"] = s
	}
	if f.command.Scheduling == "priority" {
		out["scheduling_policy"] = "priority" // proxies send such engines the priorities of requests
	}
	return out
}

// maxRankIDs bounds the engine ids in a record.
const maxRankIDs = 64

// The dialect of vllm-ascend, and its variable for how long prefill keeps KV blocks, in seconds.
const (
	envAscendLease = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
	ascendDialect  = "ascend"
)

// record adds the sizes, the KV lease and the engine ids to a record.
func (f *facts) record(rec *instance.Record, dialect string) {
	rec.TPSize, rec.PPSize, rec.DPSize = f.command.TensorParallel, f.command.PipelineParallel, f.command.DataParallel
	if f.transfer.NIXL() {
		rec.Transfer = instance.TransferNIXL
	}
	rec.KVLease = f.transfer.LeaseSeconds()
	if f.wrapped && dialect == ascendDialect {
		if n, err := strconv.Atoi(f.env(envAscendLease)); err == nil && n > 0 && n < 1<<31 {
			rec.KVLease = n
		}
	}
	id, ranks := f.transfer.EngineID, f.command.Ranks
	if id == "" {
		return
	}
	if ranks.Total <= 1 {
		rec.EngineIDs = map[string]string{"0": id}
		return
	}
	rec.EngineIDs = make(map[string]string)
	for n := ranks.First; n < ranks.First+min(f.command.DataParallel, maxRankIDs); n++ {
		rank := strconv.Itoa(n)
		rec.EngineIDs[rank] = id + "_dp" + rank // as vLLM names its ranks
	}
}

// Record returns the record of the instance from settings and facts.
func (c *Config) Record() instance.Record {
	rec := c.Facts
	rec.Connector, rec.HostID, rec.Agent, rec.Labels = c.connector, c.HostID, "pd-agent/"+version.Version, c.labels
	rec.Ports = c.Side.shown(rec.Ports)
	if strings.HasPrefix(c.Engine, "https://") {
		rec.Scheme = "https"
	}
	return rec
}
