package config

import (
	"strings"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/settings"
)

// clientSettings are about where clients are served, and which instances are known from the command line.
func (p *Proxy) clientSettings() settings.Table {
	return settings.About("Clients and instances",
		settings.Setting{Name: "host", Kind: settings.Text, Default: "127.0.0.1", Usage: "address to listen on", Into: &p.Host},
		settings.Setting{Name: "port", Kind: settings.Number, Default: "8000", Usage: "port to listen on; 0 takes any free one", Into: &p.Port},
		settings.Setting{Name: "model", Short: "m", Kind: settings.Text, Usage: "model that every instance must serve; empty allows any", Into: &p.Model},
		settings.Setting{Name: "connector", Kind: settings.Text, Default: "plain", Usage: "KV transfer of instances whose record names none: " + strings.Join(connector.Names(), ", ") + ", or the name of vLLM's class", Into: &p.Connector},
		settings.Setting{Name: "prefill", Short: "p", Kind: settings.List, Spread: true, Usage: "prefill instances, host:port; separate several by spaces or commas, or repeat the flag", Into: &p.Prefill},
		settings.Setting{Name: "decode", Short: "d", Kind: settings.List, Spread: true, Usage: "decode instances, in the same form as --prefill", Into: &p.Decode},
		settings.Setting{Name: "zmq-register", Kind: settings.Text, Usage: "tcp://host:port at which MoRI-IO engines register themselves (vLLM's examples use port 36367); each is registered in etcd while it sends pings; empty disables this", Into: &p.ZMQRegister},
	)
}

// etcdSettings are about how the fleet is found in etcd.
func (p *Proxy) etcdSettings() settings.Table {
	return settings.About("etcd",
		settings.Setting{Name: "etcd-endpoints", Kind: settings.List, Spread: true, Usage: "addresses of etcd, host:port, with https:// in front for TLS; empty means that the proxy runs its own etcd", Into: &p.EtcdEndpoints},
		settings.Setting{Name: "etcd-username", Kind: settings.Text, Usage: "etcd user; pdctl auth init creates pd-proxy", Into: &p.EtcdUsername},
		settings.Setting{Name: "etcd-password", Kind: settings.Text, Secret: true, Usage: "password of that user; better set PD_ETCD_PASSWORD", Into: &p.EtcdPassword},
		settings.Setting{Name: "etcd-password-file", Kind: settings.Text, Usage: "file whose first line is that password", Into: &p.EtcdPasswordFile},
		settings.Setting{Name: "etcd-ca", Kind: settings.Text, Usage: "PEM file of the CAs of etcd's certificate; turns TLS on (default: the system's CAs)", Into: &p.EtcdCA},
		settings.Setting{Name: "etcd-cert", Kind: settings.Text, Usage: "PEM file of the client certificate for etcd; read again when it changes, like all certificate files", Into: &p.EtcdCert},
		settings.Setting{Name: "etcd-key", Kind: settings.Text, Usage: "PEM file of the key of --etcd-cert", Into: &p.EtcdKey},
		settings.Setting{Name: "etcd-prefix", Kind: settings.Text, Default: "/pd", Usage: "root of all keys in etcd", Into: &p.EtcdPrefix},
	)
}

// ownEtcdSettings are about the etcd that the proxy runs without --etcd-endpoints.
func (p *Proxy) ownEtcdSettings() settings.Table {
	return settings.About("The proxy's own etcd",
		settings.Setting{Name: "etcd-listen", Kind: settings.Text, Default: "127.0.0.1:2379", Usage: "address of the proxy's own etcd, host:port; other than loopback only with TLS and users", Into: &p.EtcdListen},
		settings.Setting{Name: "etcd-listen-cert", Kind: settings.Text, Usage: "PEM file of the certificate of the proxy's own etcd; turns TLS on", Into: &p.EtcdListenCert},
		settings.Setting{Name: "etcd-listen-key", Kind: settings.Text, Usage: "PEM file of the key of --etcd-listen-cert", Into: &p.EtcdListenKey},
		settings.Setting{Name: "etcd-listen-client-ca", Kind: settings.Text, Usage: "PEM file of CAs; clients of the proxy's own etcd need a certificate that one of them has signed", Into: &p.EtcdListenClientCA},
		settings.Setting{Name: "etcd-data-dir", Kind: settings.Text, Usage: "data directory of the proxy's own etcd (default: pdmesh/etcd-<port> in the user's state directory)", Into: &p.EtcdDataDir},
		settings.Setting{Name: "etcd-gateway", Kind: settings.OnOff, Default: "on", Usage: "JSON gateway of the proxy's own etcd, for nodes that register with curl", Into: &p.EtcdGateway},
	)
}

// membershipSettings are about what is believed of the fleet.
func (p *Proxy) membershipSettings() settings.Table {
	return settings.About("Membership",
		settings.Setting{Name: "state-dir", Kind: settings.Text, Usage: "directory where the membership is saved, for a start while etcd is away; empty saves nothing (default: pdmesh/proxy-<port> in the user's state directory)", Into: &p.StateDir},
		settings.Setting{Name: "audit-interval", Kind: settings.Time, Default: "15s", Usage: "how often all keys in etcd are compared with what the watch has delivered", Into: &p.AuditInterval},
		settings.Setting{Name: "orphan-grace", Kind: settings.Time, Default: "1m", Usage: "how long an instance without a lease is used, if it answers and most of its role are registered", Into: &p.OrphanGrace},
		settings.Setting{Name: "waiting-retry-interval", Kind: settings.Time, Default: "2s", Usage: "time between two probes of an instance that was added before it was up", Into: &p.WaitingRetryInterval},
		settings.Setting{Name: "max-waiting-retries", Kind: settings.Number, Default: "0", Usage: "number of probes after which such an instance is given up; 0 means never", Into: &p.MaxWaitingRetries},
	)
}

// accessSettings are about who may do what, and where.
func (p *Proxy) accessSettings() settings.Table {
	return settings.About("Access",
		settings.Setting{Name: "instance-allow", Kind: settings.List, Spread: true, Usage: "networks that may receive prompts, CIDR or address; \"any\" allows all (default: loopback, if etcd is on loopback)", Into: &p.InstanceAllow},
		settings.Setting{Name: "api-key", Kind: settings.List, Spread: true, Secret: true, Usage: "API keys of clients; better set PD_API_KEY; without any, clients need no key", Into: &p.APIKeys},
		settings.Setting{Name: "api-keys-file", Kind: settings.Text, Usage: "file with API keys of clients, one \"key name rights\" on each line; rights are priority, rank and trace, separated by commas; read again when it changes", Into: &p.APIKeysFile},
		settings.Setting{Name: "engine-api-key", Kind: settings.Text, Secret: true, Env: []string{"OPENAI_API_KEY"}, Usage: "API key for the engines: sent always with --api-key, otherwise when the client sent none; also OPENAI_API_KEY", Into: &p.EngineAPIKey},
		settings.Setting{Name: "admin-api-key", Kind: settings.Text, Secret: true, Env: []string{"ADMIN_API_KEY"}, Usage: "API key for changes of the fleet over HTTP; also ADMIN_API_KEY", Into: &p.AdminAPIKey},
		settings.Setting{Name: "admin-listen", Kind: settings.Text, Usage: "separate address, host:port, for status, dashboard, admin routes and metrics; empty means --port", Into: &p.AdminListen},
		settings.Setting{Name: "dashboard", Kind: settings.OnOff, Default: "on", Usage: "web page at / that shows the fleet and, with the admin key, can change it; as public as /status", Into: &p.Dashboard},
		settings.Setting{Name: "pprof-listen", Kind: settings.Text, Usage: "loopback address, host:port, for Go's profiles (/debug/pprof/); empty disables them", Into: &p.PprofListen},
	)
}

// tlsSettings are about certificates for clients and engines.
func (p *Proxy) tlsSettings() settings.Table {
	return settings.About("TLS",
		settings.Setting{Name: "tls-cert", Kind: settings.Text, Usage: "PEM file of the certificate for clients, also at --admin-listen; both then accept only HTTPS", Into: &p.TLSCert},
		settings.Setting{Name: "tls-key", Kind: settings.Text, Usage: "PEM file of the key of --tls-cert", Into: &p.TLSKey},
		settings.Setting{Name: "tls-client-ca", Kind: settings.Text, Usage: "PEM file of CAs; every client needs a certificate that one of them has signed", Into: &p.TLSClientCA},
		settings.Setting{Name: "engine-ca", Kind: settings.Text, Usage: "PEM file of the CAs of the certificates of engines with https (default: the system's CAs)", Into: &p.EngineCA},
		settings.Setting{Name: "engine-cert", Kind: settings.Text, Usage: "PEM file of the client certificate for engines", Into: &p.EngineCert},
		settings.Setting{Name: "engine-key", Kind: settings.Text, Usage: "PEM file of the key of --engine-cert", Into: &p.EngineKey},
		settings.Setting{Name: "engine-server-name", Kind: settings.Text, Usage: "name in the certificate of every engine (default: the host of its address)", Into: &p.EngineServerName},
	)
}

// originSettings are about pages of other origins.
func (p *Proxy) originSettings() settings.Table {
	return settings.About("Browsers",
		settings.Setting{Name: "allowed-origins", Kind: settings.ListJSON, Usage: `origins whose web pages may use the proxy, such as '["https://chat.example.com"]', or '["*"]' for all; none by default, as in vLLM`, Into: &p.AllowedOrigins},
		settings.Setting{Name: "allowed-methods", Kind: settings.ListJSON, Default: `["*"]`, Usage: "HTTP methods that such pages may use", Into: &p.AllowedMethods},
		settings.Setting{Name: "allowed-headers", Kind: settings.ListJSON, Default: `["*"]`, Usage: "headers that such pages may send", Into: &p.AllowedHeaders},
		settings.Setting{Name: "allow-credentials", Kind: settings.OnOff, Default: "off", Usage: "whether such pages may send credentials, such as cookies", Into: &p.AllowCredentials},
	)
}
