package setup

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/bootstrap"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/settings"
)

// settings lists every setting of the agent in the order of --help. They fill r and c;
// what depends on the engine's surroundings is read from r.Values by name.
func (r *reader) settings(c *Config) settings.Table {
	return slices.Concat(
		engineSettings(r, c),
		handOverSettings(r, c),
		etcdSettings(r, c),
		lifeSettings(r, c),
		commandSettings(r, c),
		outputSettings(r, c),
		settings.Reading(envConfig, &r.file, &c.PrintConfig),
	)
}

// envConfig is the variable that names the agent's file. It is not that of the proxy,
// whose settings are others.
const envConfig = "PD_AGENT_CONFIG"

// Settings is the table for readers.
func Settings() settings.Table { return new(reader).settings(new(Config)) }

func Register(fs *pflag.FlagSet) { Settings().Register(fs) }

// engineSettings are about the engine and its instance.
func engineSettings(r *reader, c *Config) settings.Table {
	return settings.About("The engine",
		settings.Setting{Name: "role", Kind: settings.Text, Usage: "what the engine does: prefill, decode, or both: two instances under one lease; never taken from kv_role kv_both, which vLLM's examples give to either"},
		settings.Setting{Name: "address", Kind: settings.Text, Usage: "host:port by which proxies reach the engine; also its key in etcd"},
		settings.Setting{Name: "engine", Kind: settings.Text, Usage: "URL by which this agent reaches the engine (default http://<address>)"},
		settings.Setting{Name: "model", Kind: settings.Text, Usage: "register only if the engine serves this model; empty accepts any"},
		settings.Setting{Name: "strict-model", Kind: settings.OnOff, Default: "off", Usage: "the whole name must match, not only its last path component", Into: &c.StrictModel},
		settings.Setting{Name: "connector", Kind: settings.Text, Usage: "KV-transfer dialect of the engine: " + strings.Join(connector.Names(), ", ") + ", or the name of vLLM's class; empty leaves it to the proxy"},
		settings.Setting{Name: "label", Kind: settings.Items, Usage: "k=v, shown with the instance; may be repeated", Into: &r.labels},
		settings.Setting{Name: "host-id", Kind: settings.Text, Usage: "tells network namespaces apart (default: found from machine id and namespace)", Into: &c.HostID},
		settings.Setting{Name: "engine-api-key", Kind: settings.Text, Secret: true, Usage: "key for the engine's /v1 paths; better given by environment: PD_ENGINE_API_KEY, or OPENAI_API_KEY"},
		settings.Setting{Name: "engine-ca", Kind: settings.Text, Usage: "PEM file of the authorities that have signed the certificate of an engine with https:// (default: the system's)", Into: &c.TLS.Engine.CA},
		settings.Setting{Name: "engine-cert", Kind: settings.Text, Usage: "PEM file of the certificate that the engine is shown, with --engine-key; read again when it changes, as all such files", Into: &c.TLS.Engine.Cert},
		settings.Setting{Name: "engine-key", Kind: settings.Text, Usage: "PEM file of its key", Into: &c.TLS.Engine.Key},
		settings.Setting{Name: "engine-server-name", Kind: settings.Text, Usage: "name that the engine's certificate must bear (default: the host of --engine)", Into: &c.TLS.ServerName},
		settings.Setting{Name: "allow-loopback", Kind: settings.OnOff, Default: "off", Usage: "register a loopback address although etcd is on other machines", Into: &r.allowLoopback},
	)
}

// handOverSettings are about how the engine hands KV caches over, and its own files.
func handOverSettings(_ *reader, c *Config) settings.Table {
	return settings.About("Hand-over",
		settings.Setting{Name: "kv-transfer-config", Kind: settings.Text, Usage: "the engine's own, as JSON; role and connector are found in it (default: that of the command)"},
		settings.Setting{Name: "p2p-port", Kind: settings.Number, Usage: "port of rank 0 of the side channel of an engine whose OffloadingConnector has a tier of type p2p (default: found in the engine's facts, else " + strconv.Itoa(defaultP2PPort) + ")"},
		settings.Setting{Name: "bootstrap-port", Kind: settings.Number, Usage: "port of a Mooncake prefill engine's bootstrap server (default: found in the engine's facts, else " + strconv.Itoa(bootstrap.DefaultPort) + ")"},
		settings.Setting{Name: "mooncake-config", Kind: settings.Text, Usage: "mooncake.json of any generation; etcd is found in it (default: $MOONCAKE_CONFIG_PATH)"},
		settings.Setting{Name: "lmcache-config", Kind: settings.Text, Usage: "LMCache's configuration file, in which the following are found (default: $LMCACHE_CONFIG_FILE)"},
		settings.Setting{Name: "lmcache-init-port", Kind: settings.Text, Usage: "pd_peer_init_port of a decode engine with LMCache's PD backend, one port for each rank, comma separated"},
		settings.Setting{Name: "lmcache-alloc-port", Kind: settings.Text, Usage: "its pd_peer_alloc_port, likewise"},
		settings.Setting{Name: "lmcache-host", Kind: settings.Text, Usage: "host by which prefill engines reach these ports (default: that of --address)"},
		settings.Setting{Name: "lmcache-notify", Kind: settings.Text, Usage: "tcp://host:port where this agent takes the notifications of a prefill engine with LMCache's PD backend, and hands them on to whichever proxy asks; the engine's pd_proxy_host and pd_proxy_port say the same"},
		settings.Setting{Name: "lmcache-notify-listen", Kind: settings.Text, Usage: "host:port where proxies ask for them (default: any free port at the host of --address)"},
		settings.Setting{Name: "zmq-register", Kind: settings.Text, Usage: "tcp://host:port at which MoRI-IO engines register themselves (vLLM's examples use port 36367); this agent then registers each that pings, and is beside none", Into: &c.ZMQRegister},
	)
}

// etcdSettings are about the etcd that the agent registers in.
func etcdSettings(r *reader, c *Config) settings.Table {
	return settings.About("etcd",
		settings.Setting{Name: "etcd-endpoints", Kind: settings.List, Default: "127.0.0.1:2379", Usage: "host:port of each etcd member, comma separated, with https:// in front for TLS", Into: &c.EtcdEndpoints},
		settings.Setting{Name: "etcd-ca", Kind: settings.Text, Usage: "PEM file of the authorities that have signed etcd's certificate; means TLS (default: the system's)", Into: &c.TLS.Etcd.Files.CA},
		settings.Setting{Name: "etcd-cert", Kind: settings.Text, Usage: "PEM file of the certificate that etcd is shown, with --etcd-key", Into: &c.TLS.Etcd.Files.Cert},
		settings.Setting{Name: "etcd-key", Kind: settings.Text, Usage: "PEM file of its key", Into: &c.TLS.Etcd.Files.Key},
		settings.Setting{Name: "etcd-prefix", Kind: settings.Text, Default: "/pd", Usage: "root of all keys", Into: &c.EtcdPrefix},
		settings.Setting{Name: "etcd-username", Kind: settings.Text, Usage: "user of etcd", Into: &c.EtcdUsername},
		settings.Setting{Name: "etcd-password", Kind: settings.Text, Secret: true, Usage: "its password; better given by environment: PD_ETCD_PASSWORD", Into: &c.EtcdPassword},
		settings.Setting{Name: "etcd-password-file", Kind: settings.Text, Usage: "file with that password in its first line", Into: &r.passwordFile},
		settings.Setting{Name: "ttl", Kind: settings.Time, Default: defaultTTL.String(), Usage: "how long the registration outlives a dead agent, at least " + minTTL.String(), Into: &c.TTL},
		settings.Setting{Name: "allow-short-ttl", Kind: settings.OnOff, Default: "off", Hidden: true, Usage: "a --ttl of a second, for tests", Into: &r.shortTTL},
	)
}

// lifeSettings are about probes, and the agent's end.
func lifeSettings(_ *reader, c *Config) settings.Table {
	return settings.About("Probes and drain",
		settings.Setting{Name: "probe-interval", Kind: settings.Time, Default: agent.DefaultProbeInterval.String(), Usage: "time between two probes of the engine", Into: &c.ProbeInterval},
		settings.Setting{Name: "probe-timeout", Kind: settings.Time, Default: agent.DefaultProbeTimeout.String(), Usage: "limit of one probe, in time that this agent gets to run; three in a row that are refused or fail make the instance down", Into: &c.ProbeTimeout},
		settings.Setting{Name: "slow-after", Kind: settings.Time, Default: agent.DefaultSlowAfter.String(), Usage: "how long probes must stay unanswered, three in a row at least, until the instance is down for being slow; proxies go on with it while no other one of its role is ready", Into: &c.SlowAfter},
		settings.Setting{Name: "drain-timeout", Kind: settings.Time, Default: agent.DefaultDrainTimeout.String(), Usage: "after SIGTERM: how long to wait for the engine to be idle", Into: &c.DrainTimeout},
		settings.Setting{Name: "kv-lease", Kind: settings.Time, Default: agent.DefaultKVLease.String(), Usage: "after SIGTERM of an instance that prefills: how long finished prefills stay for decode to pull; 0 for none", Into: &c.KVLease},
	)
}

// commandSettings are about an engine that the agent starts.
func commandSettings(r *reader, c *Config) settings.Table {
	return settings.About("With a command",
		settings.Setting{Name: "restart", Kind: settings.Text, Default: restartNo, Usage: "with a command: no, or on-failure to start the engine again when it fails", Into: &r.restart},
		settings.Setting{Name: "restart-delay", Kind: settings.Time, Default: "1s", Usage: "with --restart: pause before the first new start; it doubles with each", Into: &c.RestartDelay},
		settings.Setting{Name: "restart-delay-max", Kind: settings.Time, Default: "1m", Usage: "with --restart: longest pause; a life of that length makes it short again", Into: &c.RestartDelayMax},
		settings.Setting{Name: "start-timeout", Kind: settings.Time, Default: "0s", Usage: "with a command: how long the engine may take to answer, else it has failed; 0 for any time", Into: &c.StartTimeout},
		settings.Setting{Name: "stop-timeout", Kind: settings.Time, Default: "30s", Usage: "with a command: how long the engine may take to end after SIGTERM, then its process group is killed", Into: &c.StopTimeout},
		settings.Setting{Name: "engine-dies-with-agent", Kind: settings.OnOff, Default: "off", Usage: "with a command: the kernel sends the engine SIGTERM if this agent is killed; without it the engine serves on", Into: &c.DieWith},
	)
}

// outputSettings are about how the agent is heard.
func outputSettings(_ *reader, c *Config) settings.Table {
	return settings.About("Control and log",
		settings.Setting{Name: "socket", Kind: settings.Text, Usage: "unix socket of the local control: agent status, drain, health; \"off\" for none (default: by address, in $XDG_RUNTIME_DIR, /run or the temporary directory)", Into: &c.Socket},
		settings.Setting{Name: "log-level", Kind: settings.Text, Default: "info", Usage: strings.Join(logging.Levels(), ", "), Into: &c.LogLevel},
		settings.Setting{Name: "log-format", Kind: settings.Text, Default: "text", Usage: "text or json", Into: &c.LogFormat},
	)
}
