package setup

import (
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
)

// settings returns all settings of the agent in the order of --help. They fill r and c; those
// that facts may replace are read from r.Values by name.
func (r *reader) settings(c *Config) settings.Table {
	return slices.Concat(
		settings.About("Engine",
			settings.Setting{Name: "role", Kind: settings.Text, Usage: "role of the engine: prefill, decode, or both (two instances under one lease); kv_role kv_both does not set it, because engines of either role may have it"},
			settings.Setting{Name: "address", Kind: settings.Text, Usage: "host:port by which proxies reach the engine; part of its key in etcd"},
			settings.Setting{Name: "engine", Kind: settings.Text, Usage: "URL by which this agent reaches the engine (default: http://<address>)"},
			settings.Setting{Name: "model", Kind: settings.Text, Usage: "register only if the engine serves this model; empty allows any"},
			settings.Setting{Name: "strict-model", Kind: settings.OnOff, Default: "off", Rare: true, Usage: "compare the whole name of the model, not only the last part of its path", Into: &c.StrictModel},
			settings.Setting{Name: "connector", Kind: settings.Text, Usage: "KV connector of the engine: " + strings.Join(connector.Names(), ", ") + ", or the name of vLLM's class; empty leaves it to the proxy"},
			settings.Setting{Name: "label", Kind: settings.Items, Usage: "label k=v of the instance; can be repeated", Into: &r.labels},
			settings.Setting{Name: "host-id", Kind: settings.Text, Rare: true, Usage: "identifies this host and its network namespace (default: from machine id and namespace)", Into: &c.HostID},
			settings.Setting{Name: "engine-api-key", Kind: settings.Text, Secret: true, Usage: "API key for the engine's /v1 paths; better set PD_ENGINE_API_KEY or OPENAI_API_KEY"},
			settings.Setting{Name: "engine-ca", Kind: settings.Text, Usage: "PEM file of the CAs of the certificate of an engine with https:// (default: the system's CAs)", Into: &c.TLS.Engine.CA},
			settings.Setting{Name: "engine-cert", Kind: settings.Text, Rare: true, Usage: "PEM file of the client certificate for the engine; read again when it changes, like all certificate files", Into: &c.TLS.Engine.Cert},
			settings.Setting{Name: "engine-key", Kind: settings.Text, Rare: true, Usage: "PEM file of the key of --engine-cert", Into: &c.TLS.Engine.Key},
			settings.Setting{Name: "engine-server-name", Kind: settings.Text, Rare: true, Usage: "name in the engine's certificate (default: the host of --engine)", Into: &c.TLS.ServerName},
			settings.Setting{Name: "allow-loopback", Kind: settings.OnOff, Default: "off", Rare: true, Usage: "register a loopback address although etcd is on other machines", Into: &r.allowLoopback},
		),
		settings.About("KV transfer",
			settings.Setting{Name: "kv-transfer-config", Kind: settings.Text, Usage: "--kv-transfer-config of the engine, as JSON; role and connector are read from it (default: that of the command)"},
			settings.Setting{Name: "p2p-port", Kind: settings.Number, Rare: true, Usage: "side channel port of the first rank of this engine, for an OffloadingConnector with a tier of type p2p (default: from the engine's command or environment, else " + strconv.Itoa(defaultP2PPort) + ", plus --data-parallel-rank or --data-parallel-start-rank)"},
			settings.Setting{Name: "bootstrap-port", Kind: settings.Number, Rare: true, Usage: "port of the bootstrap server of a Mooncake prefill engine (default: from the engine's command or environment, else " + strconv.Itoa(instance.DefaultBootstrapPort) + ")"},
			settings.Setting{Name: "mooncake-config", Kind: settings.Text, Usage: "mooncake.json of any version; the address of etcd is read from it (default: $MOONCAKE_CONFIG_PATH)"},
			settings.Setting{Name: "lmcache-config", Kind: settings.Text, Usage: "LMCache's configuration file; the following settings are read from it (default: $LMCACHE_CONFIG_FILE)"},
			settings.Setting{Name: "lmcache-init-port", Kind: settings.Text, Rare: true, Usage: "pd_peer_init_port of a decode engine with LMCache's PD backend; one port for each rank, separated by commas"},
			settings.Setting{Name: "lmcache-alloc-port", Kind: settings.Text, Rare: true, Usage: "pd_peer_alloc_port of that engine, in the same form"},
			settings.Setting{Name: "lmcache-host", Kind: settings.Text, Rare: true, Usage: "host by which prefill engines reach these ports (default: the host of --address)"},
			settings.Setting{Name: "lmcache-notify", Kind: settings.Text, Usage: "tcp://host:port where this agent receives the notifications of a prefill engine with LMCache's PD backend, as in the engine's pd_proxy_host and pd_proxy_port; proxies read them from the agent"},
			settings.Setting{Name: "lmcache-notify-listen", Kind: settings.Text, Rare: true, Usage: "host:port where proxies read these notifications (default: a free port at the host of --address)"},
			settings.Setting{Name: "zmq-register", Kind: settings.Text, Rare: true, Usage: "tcp://host:port at which MoRI-IO engines register themselves (vLLM's examples use port 36367); this agent then registers each engine that sends pings, and has no engine of its own", Into: &c.ZMQRegister},
		),
		settings.About("etcd",
			settings.Setting{Name: "etcd-endpoints", Kind: settings.List, Default: "127.0.0.1:2379", Usage: "host:port of each etcd member, separated by commas, with https:// in front for TLS", Into: &c.EtcdEndpoints},
			settings.Setting{Name: "etcd-ca", Kind: settings.Text, Usage: "PEM file of the CAs of etcd's certificate; turns TLS on (default: the system's CAs)", Into: &c.TLS.Etcd.Files.CA},
			settings.Setting{Name: "etcd-cert", Kind: settings.Text, Rare: true, Usage: "PEM file of the client certificate for etcd", Into: &c.TLS.Etcd.Files.Cert},
			settings.Setting{Name: "etcd-key", Kind: settings.Text, Rare: true, Usage: "PEM file of the key of --etcd-cert", Into: &c.TLS.Etcd.Files.Key},
			settings.Setting{Name: "etcd-prefix", Kind: settings.Text, Default: "/pd", Usage: "root of all keys in etcd", Into: &c.EtcdPrefix},
			settings.Setting{Name: "etcd-username", Kind: settings.Text, Usage: "etcd user", Into: &c.EtcdUsername},
			settings.Setting{Name: "etcd-password", Kind: settings.Text, Secret: true, Rare: true, Usage: "password of that user; better set PD_ETCD_PASSWORD", Into: &c.EtcdPassword},
			settings.Setting{Name: "etcd-password-file", Kind: settings.Text, Usage: "file whose first line is that password", Into: &r.passwordFile},
			settings.Setting{Name: "ttl", Kind: settings.Time, Default: defaultTTL.String(), Usage: "TTL of the lease: how long the registration stays after the agent has died; at least " + minTTL.String(), Into: &c.TTL},
			settings.Setting{Name: "allow-short-ttl", Kind: settings.OnOff, Default: "off", Hidden: true, Usage: "a --ttl of a second, for tests", Into: &r.shortTTL},
		),
		settings.About("Probes and drain",
			settings.Setting{Name: "probe-interval", Kind: settings.Time, Default: agent.DefaultProbeInterval.String(), Rare: true, Usage: "time between two probes of the engine", Into: &c.ProbeInterval},
			settings.Setting{Name: "probe-timeout", Kind: settings.Time, Default: agent.DefaultProbeTimeout.String(), Rare: true, Usage: "time limit of one probe, in time that this agent gets the CPU; after three failed probes in a row the instance is down", Into: &c.ProbeTimeout},
			settings.Setting{Name: "slow-after", Kind: settings.Time, Default: agent.DefaultSlowAfter.String(), Rare: true, Usage: "how long probes (at least three in a row) must get no answer until the instance is down because it is slow; proxies still use it while no other of its role is ready", Into: &c.SlowAfter},
			settings.Setting{Name: "drain-timeout", Kind: settings.Time, Default: agent.DefaultDrainTimeout.String(), Usage: "after SIGTERM and --shutdown-delay: how long to wait until the engine is idle", Into: &c.DrainTimeout},
			settings.Setting{Name: "shutdown-delay", Kind: settings.Time, Default: "0s", Usage: "after SIGTERM: how long an idle engine stays registered as draining at least, so that all proxies notice; at most 1h; SIGINT or a second signal skips it", Into: &c.ShutdownDelay},
			settings.Setting{Name: "kv-lease", Kind: settings.Time, Default: agent.DefaultKVLease.String(), Usage: "after SIGTERM, for prefill: how long the engine stays so that decode can fetch KV caches of finished prefills; 0 means not at all", Into: &c.KVLease},
		),
		settings.About("Engine started by the agent",
			settings.Setting{Name: "restart", Kind: settings.Text, Default: restartNo, Usage: "with a command: on-failure starts a failed engine again; no does not", Into: &r.restart},
			settings.Setting{Name: "restart-delay", Kind: settings.Time, Default: "1s", Rare: true, Usage: "with --restart: pause before the first restart; it doubles with each further one", Into: &c.RestartDelay},
			settings.Setting{Name: "restart-delay-max", Kind: settings.Time, Default: "1m", Rare: true, Usage: "with --restart: longest pause; when the engine has run that long, the pause is short again", Into: &c.RestartDelayMax},
			settings.Setting{Name: "start-timeout", Kind: settings.Time, Default: "0s", Usage: "with a command: how long the engine may take until it answers, otherwise it has failed; 0 means no limit", Into: &c.StartTimeout},
			settings.Setting{Name: "stop-timeout", Kind: settings.Time, Default: "30s", Usage: "with a command: how long the engine may take to exit after SIGTERM; then its process group is killed", Into: &c.StopTimeout},
			settings.Setting{Name: "engine-dies-with-agent", Kind: settings.OnOff, Default: "off", Rare: true, Usage: "with a command: the kernel sends the engine SIGTERM if this agent is killed; otherwise the engine keeps serving", Into: &c.DieWith},
		),
		settings.About("Control and logs",
			settings.Setting{Name: "socket", Kind: settings.Text, Usage: "unix socket for pdmesh-agent status, drain and health; \"off\" for none (default: by address, in $XDG_RUNTIME_DIR, /run or the temporary directory)", Into: &c.Socket},
			settings.Setting{Name: "log-level", Kind: settings.Text, Default: "info", Usage: strings.Join(logging.Levels(), ", "), Into: &c.LogLevel},
			settings.Setting{Name: "log-format", Kind: settings.Text, Default: "text", Usage: "text or json", Into: &c.LogFormat},
		),
		settings.Reading(envConfig, &r.file, &c.PrintConfig),
	)
}

// envConfig is the variable that names the agent's file; the proxy has another one.
const envConfig = "PD_AGENT_CONFIG"

// Settings returns the table for flags and documentation.
func Settings() settings.Table { return new(reader).settings(new(Config)) }
