package program

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/bootstrap"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/logging"
)

func registerFlags(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.String("role", "", "what the engine does: prefill, decode, or both: two instances under one lease; never taken from kv_role kv_both, which vLLM's examples give to either")
	fs.String("address", "", "host:port by which proxies reach the engine; also its key in etcd")
	fs.String("engine", "", "URL by which this agent reaches the engine (default http://<address>)")
	fs.String("model", "", "register only if the engine serves this model; empty accepts any")
	fs.Bool("strict-model", false, "the whole name must match, not only its last path component")
	fs.String("connector", "", "KV-transfer dialect of the engine: "+strings.Join(connector.Names(), ", ")+", or the name of vLLM's class; empty leaves it to the proxy")
	fs.Int("p2p-port", 0, "port of rank 0 of the side channel of an engine whose OffloadingConnector has a tier of type p2p (default: found in the engine's facts, else "+strconv.Itoa(defaultP2PPort)+")")
	fs.Int("bootstrap-port", 0, "port of a Mooncake prefill engine's bootstrap server (default: found in the engine's facts, else "+strconv.Itoa(bootstrap.DefaultPort)+")")
	fs.String("zmq-register", "", "tcp://host:port at which MoRI-IO engines register themselves (vLLM's examples use port 36367); this agent then registers each that pings, and is beside none")
	fs.String("lmcache-config", "", "LMCache's configuration file, in which the following are found (default: $LMCACHE_CONFIG_FILE)")
	fs.String("lmcache-init-port", "", "pd_peer_init_port of a decode engine with LMCache's PD backend, one port for each rank, comma separated")
	fs.String("lmcache-alloc-port", "", "its pd_peer_alloc_port, likewise")
	fs.String("lmcache-host", "", "host by which prefill engines reach these ports (default: that of --address)")
	fs.String("lmcache-notify", "", "tcp://host:port where this agent takes the notifications of a prefill engine with LMCache's PD backend, and hands them on to whichever proxy asks; the engine's pd_proxy_host and pd_proxy_port say the same")
	fs.String("lmcache-notify-listen", "", "host:port where proxies ask for them (default: any free port at the host of --address)")
	fs.StringArray("label", nil, "k=v, shown with the instance; may be repeated")
	fs.String("host-id", "", "tells network namespaces apart (default: found from machine id and namespace)")
	fs.String("engine-api-key", "", "key for the engine's /v1 paths; better given by environment: PD_ENGINE_API_KEY, or OPENAI_API_KEY")
	fs.String("engine-ca", "", "PEM file of the authorities that have signed the certificate of an engine with https:// (default: the system's)")
	fs.String("engine-cert", "", "PEM file of the certificate that the engine is shown, with --engine-key; read again when it changes, as all such files")
	fs.String("engine-key", "", "PEM file of its key")
	fs.String("engine-server-name", "", "name that the engine's certificate must bear (default: the host of --engine)")
	fs.StringSlice("etcd-endpoints", []string{"127.0.0.1:2379"}, "host:port of each etcd member, comma separated, with https:// in front for TLS")
	fs.String("etcd-ca", "", "PEM file of the authorities that have signed etcd's certificate; means TLS (default: the system's)")
	fs.String("etcd-cert", "", "PEM file of the certificate that etcd is shown, with --etcd-key")
	fs.String("etcd-key", "", "PEM file of its key")
	fs.String("etcd-prefix", "/pd", "root of all keys")
	fs.String("etcd-username", "", "user of etcd")
	fs.String("etcd-password", "", "its password; better given by environment: PD_ETCD_PASSWORD")
	fs.String("etcd-password-file", "", "file with that password in its first line")
	fs.Bool("allow-loopback", false, "register a loopback address although etcd is on other machines")
	fs.Duration("ttl", defaultTTL, "how long the registration outlives a dead agent, at least "+minTTL.String())
	fs.Duration("probe-interval", agent.DefaultProbeInterval, "time between two probes of the engine")
	fs.Duration("probe-timeout", agent.DefaultProbeTimeout, "limit of one probe, in time that this agent gets to run; three in a row that are refused or fail make the instance down")
	fs.Duration("slow-after", agent.DefaultSlowAfter, "how long probes must stay unanswered, three in a row at least, until the instance is down for being slow; proxies go on with it while no other one of its role is ready")
	fs.Duration("drain-timeout", agent.DefaultDrainTimeout, "after SIGTERM: how long to wait for the engine to be idle")
	fs.Duration("kv-lease", agent.DefaultKVLease, "after SIGTERM of an instance that prefills: how long finished prefills stay for decode to pull; 0 for none")
	fs.String("socket", "", "unix socket of the local control: agent status, drain, health; \"off\" for none (default: by address, in $XDG_RUNTIME_DIR, /run or the temporary directory)")
	fs.String("mooncake-config", "", "mooncake.json of any generation; etcd is found in it (default: $MOONCAKE_CONFIG_PATH)")
	fs.String("kv-transfer-config", "", "the engine's own, as JSON; role and connector are found in it (default: that of the command)")
	fs.String("restart", restartNo, "with a command: no, or on-failure to start the engine again when it fails")
	fs.Duration("restart-delay", time.Second, "with --restart: pause before the first new start; it doubles with each")
	fs.Duration("restart-delay-max", time.Minute, "with --restart: longest pause; a life of that length makes it short again")
	fs.Duration("start-timeout", 0, "with a command: how long the engine may take to answer, else it has failed; 0 for any time")
	fs.Duration("stop-timeout", 30*time.Second, "with a command: how long the engine may take to end after SIGTERM, then its process group is killed")
	fs.Bool("engine-dies-with-agent", false, "with a command: the kernel sends the engine SIGTERM if this agent is killed; without it the engine serves on")
	fs.Bool("print-config", false, "print what would be used and where it is from, secrets masked, and exit")
	fs.String("log-level", "info", strings.Join(logging.Levels(), ", "))
	fs.String("log-format", "text", "text or json")
	fs.Bool("allow-short-ttl", false, "")
	_ = fs.MarkHidden("allow-short-ttl") // exists: registered in the line above
}
