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
		settings.Setting{Name: "model", Short: "m", Kind: settings.Text, Usage: "model every instance must serve; empty takes any", Into: &p.Model},
		settings.Setting{Name: "connector", Kind: settings.Text, Default: "plain", Usage: "KV transfer of instances whose record names none: " + strings.Join(connector.Names(), ", ") + ", or the name of vLLM's class", Into: &p.Connector},
		settings.Setting{Name: "prefill", Short: "p", Kind: settings.List, Spread: true, Usage: "prefill instances, host:port; several after one flag, by comma or by repeating it", Into: &p.Prefill},
		settings.Setting{Name: "decode", Short: "d", Kind: settings.List, Spread: true, Usage: "decode instances, written as for --prefill", Into: &p.Decode},
		settings.Setting{Name: "zmq-register", Kind: settings.Text, Usage: "tcp://host:port at which MoRI-IO engines register themselves (vLLM's examples use port 36367); each is registered in etcd for as long as it pings; empty takes none", Into: &p.ZMQRegister},
	)
}

// etcdSettings are about how the fleet is found in etcd.
func (p *Proxy) etcdSettings() settings.Table {
	return settings.About("etcd",
		settings.Setting{Name: "etcd-endpoints", Kind: settings.List, Spread: true, Usage: "host:port of the etcd to use, with https:// in front for TLS; without it the proxy runs its own", Into: &p.EtcdEndpoints},
		settings.Setting{Name: "etcd-username", Kind: settings.Text, Usage: "user at etcd, as which pdctl auth init sets up pd-proxy", Into: &p.EtcdUsername},
		settings.Setting{Name: "etcd-password", Kind: settings.Text, Secret: true, Usage: "password of that user (better given as PD_ETCD_PASSWORD)", Into: &p.EtcdPassword},
		settings.Setting{Name: "etcd-password-file", Kind: settings.Text, Usage: "file with that password in its first line", Into: &p.EtcdPasswordFile},
		settings.Setting{Name: "etcd-ca", Kind: settings.Text, Usage: "PEM file of the authorities that have signed etcd's certificate; means TLS (default the system's)", Into: &p.EtcdCA},
		settings.Setting{Name: "etcd-cert", Kind: settings.Text, Usage: "PEM file of the certificate that etcd is shown, with --etcd-key; read again when it changes, as all such files", Into: &p.EtcdCert},
		settings.Setting{Name: "etcd-key", Kind: settings.Text, Usage: "PEM file of its key", Into: &p.EtcdKey},
		settings.Setting{Name: "etcd-prefix", Kind: settings.Text, Default: "/pd", Usage: "root of all keys in etcd", Into: &p.EtcdPrefix},
	)
}

// ownEtcdSettings are about the etcd that the proxy runs without --etcd-endpoints.
func (p *Proxy) ownEtcdSettings() settings.Table {
	return settings.About("The proxy's own etcd",
		settings.Setting{Name: "etcd-listen", Kind: settings.Text, Default: "127.0.0.1:2379", Usage: "client address of the proxy's own etcd; beyond loopback only with TLS and users", Into: &p.EtcdListen},
		settings.Setting{Name: "etcd-listen-cert", Kind: settings.Text, Usage: "PEM file of the certificate that the proxy's own etcd shows; means TLS", Into: &p.EtcdListenCert},
		settings.Setting{Name: "etcd-listen-key", Kind: settings.Text, Usage: "PEM file of its key", Into: &p.EtcdListenKey},
		settings.Setting{Name: "etcd-listen-client-ca", Kind: settings.Text, Usage: "PEM file of authorities, of one of which the clients of the proxy's own etcd must show a certificate", Into: &p.EtcdListenClientCA},
		settings.Setting{Name: "etcd-data-dir", Kind: settings.Text, Usage: "data of the proxy's own etcd (default pdmesh/etcd-<port> in the user's state directory)", Into: &p.EtcdDataDir},
		settings.Setting{Name: "etcd-gateway", Kind: settings.OnOff, Default: "on", Usage: "JSON gateway of the proxy's own etcd, for nodes that register with curl", Into: &p.EtcdGateway},
	)
}

// membershipSettings are about what is believed of the fleet.
func (p *Proxy) membershipSettings() settings.Table {
	return settings.About("Membership",
		settings.Setting{Name: "state-dir", Kind: settings.Text, Usage: "where the membership is saved for a start without etcd; empty saves nothing (default pdmesh/proxy-<port> in the user's state directory)", Into: &p.StateDir},
		settings.Setting{Name: "audit-interval", Kind: settings.Time, Default: "15s", Usage: "between two comparisons of all keys in etcd with what its watch has told", Into: &p.AuditInterval},
		settings.Setting{Name: "orphan-grace", Kind: settings.Time, Default: "1m", Usage: "how long an instance whose lease was lost, and that answers, is served while most others are registered", Into: &p.OrphanGrace},
		settings.Setting{Name: "waiting-retry-interval", Kind: settings.Time, Default: "2s", Usage: "between two probes of an instance that was added before it was up", Into: &p.WaitingRetryInterval},
		settings.Setting{Name: "max-waiting-retries", Kind: settings.Number, Default: "0", Usage: "probes until such an instance is given up; 0 means never", Into: &p.MaxWaitingRetries},
	)
}

// accessSettings are about who may do what, and where.
func (p *Proxy) accessSettings() settings.Table {
	return settings.About("Access",
		settings.Setting{Name: "instance-allow", Kind: settings.List, Spread: true, Usage: "networks instances may be in (CIDR or address; \"any\" for all); default loopback when etcd is on loopback", Into: &p.InstanceAllow},
		settings.Setting{Name: "api-key", Kind: settings.List, Spread: true, Secret: true, Usage: "keys clients must send (better given as PD_API_KEY); none lets everybody in", Into: &p.APIKeys},
		settings.Setting{Name: "api-keys-file", Kind: settings.Text, Usage: "file of further keys of clients, one \"key name rights\" a line; rights are priority, rank and trace, by comma; read again when it changes", Into: &p.APIKeysFile},
		settings.Setting{Name: "engine-api-key", Kind: settings.Text, Secret: true, Env: []string{"OPENAI_API_KEY"}, Usage: "key sent to the engines: always with --api-key, else when the client sent none; env OPENAI_API_KEY too", Into: &p.EngineAPIKey},
		settings.Setting{Name: "admin-api-key", Kind: settings.Text, Secret: true, Env: []string{"ADMIN_API_KEY"}, Usage: "key for changing the fleet over HTTP; env ADMIN_API_KEY too", Into: &p.AdminAPIKey},
		settings.Setting{Name: "admin-listen", Kind: settings.Text, Usage: "own host:port for status, dashboard, admin routes and metrics; empty keeps them on --port", Into: &p.AdminListen},
		settings.Setting{Name: "dashboard", Kind: settings.OnOff, Default: "on", Usage: "a page for people at /, where the fleet is seen and, with the admin key, changed; it may be seen by whoever may see /status", Into: &p.Dashboard},
		settings.Setting{Name: "pprof-listen", Kind: settings.Text, Usage: "loopback host:port for Go's profiles (/debug/pprof/); empty offers none", Into: &p.PprofListen},
	)
}

// tlsSettings are about certificates for clients and engines.
func (p *Proxy) tlsSettings() settings.Table {
	return settings.About("TLS",
		settings.Setting{Name: "tls-cert", Kind: settings.Text, Usage: "PEM file of the certificate for clients, and for --admin-listen; with --tls-key these speak HTTPS alone", Into: &p.TLSCert},
		settings.Setting{Name: "tls-key", Kind: settings.Text, Usage: "PEM file of its key", Into: &p.TLSKey},
		settings.Setting{Name: "tls-client-ca", Kind: settings.Text, Usage: "PEM file of authorities: every client must show a certificate that one of them has signed", Into: &p.TLSClientCA},
		settings.Setting{Name: "engine-ca", Kind: settings.Text, Usage: "PEM file of the authorities that have signed the certificates of engines with scheme https (default the system's)", Into: &p.EngineCA},
		settings.Setting{Name: "engine-cert", Kind: settings.Text, Usage: "PEM file of the certificate that engines are shown, with --engine-key", Into: &p.EngineCert},
		settings.Setting{Name: "engine-key", Kind: settings.Text, Usage: "PEM file of its key", Into: &p.EngineKey},
		settings.Setting{Name: "engine-server-name", Kind: settings.Text, Usage: "name that the certificate of every engine must bear (default the host of its address)", Into: &p.EngineServerName},
	)
}

// originSettings are about pages of other origins.
func (p *Proxy) originSettings() settings.Table {
	return settings.About("Browsers",
		settings.Setting{Name: "allowed-origins", Kind: settings.ListJSON, Usage: `origins whose pages may use the proxy from a browser, such as '["https://chat.example.com"]', or '["*"]' for all; none by default, as with vLLM`, Into: &p.AllowedOrigins},
		settings.Setting{Name: "allowed-methods", Kind: settings.ListJSON, Default: `["*"]`, Usage: "methods that they may use", Into: &p.AllowedMethods},
		settings.Setting{Name: "allowed-headers", Kind: settings.ListJSON, Default: `["*"]`, Usage: "headers that they may send", Into: &p.AllowedHeaders},
		settings.Setting{Name: "allow-credentials", Kind: settings.OnOff, Default: "off", Usage: "let them send cookies and the like", Into: &p.AllowCredentials},
	)
}
