package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Access has the keys of clients and engines, and the networks of instances.
type Access struct {
	// InstanceAllow lists the networks of instances. Nil allows every address except those
	// that are always refused.
	InstanceAllow []netip.Prefix

	APIKeys      []string // keys of clients; none = no key is required
	APIKeysFile  string   // file of further keys, with names and rights; "" = none
	EngineAPIKey string   // key sent to the engines
	AdminAPIKey  string   // key of the routes that change the fleet; "" = these routes refuse
	// AdminAPIKeysFile is a file of further admin keys, with names and rights; "" = none.
	AdminAPIKeysFile string
	AdminListen      string // host:port for status, admin and metrics; "" = same as clients
	Dashboard        bool   // the page at /
	PprofListen      string // loopback host:port for Go's profiles; "" = none
}

func (a *Access) settings() settings.Table {
	return settings.About("Access",
		settings.Setting{Name: "instance-allow", Kind: settings.List, Spread: true, Usage: "networks that may receive prompts, CIDR or address; \"any\" allows all (default: loopback, if etcd is on loopback)", Into: &a.InstanceAllow},
		settings.Setting{Name: "api-key", Kind: settings.List, Spread: true, Secret: true, Usage: "API keys of clients; better set PD_API_KEY; without any, clients need no key", Into: &a.APIKeys},
		settings.Setting{Name: "api-keys-file", Kind: settings.Text, Usage: "file with API keys of clients, one \"key name rights\" on each line, and perhaps class= and max-class=; rights are priority, rank and trace, separated by commas; read again when it changes", Into: &a.APIKeysFile},
		settings.Setting{Name: "engine-api-key", Kind: settings.Text, Secret: true, Env: []string{"OPENAI_API_KEY"}, Usage: "API key for the engines: sent always with --api-key, otherwise when the client sent none; also OPENAI_API_KEY", Into: &a.EngineAPIKey},
		settings.Setting{Name: "admin-api-key", Kind: settings.Text, Secret: true, Env: []string{"ADMIN_API_KEY"}, Usage: "API key for changes of the fleet over HTTP; also ADMIN_API_KEY", Into: &a.AdminAPIKey},
		settings.Setting{Name: "admin-api-keys-file", Kind: settings.Text, Usage: "file with admin keys, one \"key name rights\" on each line; rights are read and operate, separated by commas; the audit log has the name; read again when it changes", Into: &a.AdminAPIKeysFile},
		settings.Setting{Name: "admin-listen", Kind: settings.Text, Usage: "separate address, host:port, for status, dashboard, admin routes and metrics; empty means --port", Into: &a.AdminListen},
		settings.Setting{Name: "dashboard", Kind: settings.OnOff, Default: "on", Rare: true, Usage: "web page at / that shows the fleet and, with the admin key, can change it; as public as /status", Into: &a.Dashboard},
		settings.Setting{Name: "pprof-listen", Kind: settings.Text, Rare: true, Usage: "loopback address, host:port, for Go's profiles (/debug/pprof/); empty disables them", Into: &a.PprofListen},
	)
}

// allowDefault allows loopback and the instance addresses of the command line, whose author decides
// where prompts go. It does not cover host names, which are resolved only when they are dialed: notice
// is about the first of them; "" without any.
func (a *Access) allowDefault(instances []string) (notice string) {
	a.InstanceAllow = []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("::1/128"),
	}
	for _, address := range instances {
		ap, err := netip.ParseAddrPort(address)
		switch {
		case err != nil && notice == "":
			notice = fmt.Sprintf("%s is a name: it is used only if the name resolves to an address that "+
				"is allowed; name its network with --instance-allow, e.g. --instance-allow 10.0.0.0/8", address)
		case err != nil, ap.Addr().IsLoopback():
		default:
			one := netip.PrefixFrom(ap.Addr(), ap.Addr().BitLen())
			if !slices.Contains(a.InstanceAllow, one) {
				a.InstanceAllow = append(a.InstanceAllow, one)
			}
		}
	}
	return notice
}

func (a *Access) allows(ip netip.Addr) bool {
	return slices.ContainsFunc(a.InstanceAllow, func(n netip.Prefix) bool { return n.Contains(ip.Unmap()) })
}

func (a *Access) check(c *complaints, clients *Clients, etcd *Etcd) {
	a.checkNetworks(c, etcd)
	a.checkKeys(c)
	if a.AdminListen != "" {
		if err := checkListen(a.AdminListen); err != nil {
			c.bad("admin-listen", "%w", err)
		} else if clients.Port != 0 && a.AdminListen == net.JoinHostPort(clients.Host, strconv.Itoa(clients.Port)) {
			c.bad("admin-listen", "%s is the address for clients; use another port, or none", a.AdminListen)
		}
	}
	if a.PprofListen != "" {
		if err := checkListen(a.PprofListen); err != nil {
			c.bad("pprof-listen", "%w", err)
		} else if !instance.IsLoopback(a.PprofListen) {
			c.bad("pprof-listen", "%s: profiles contain data of requests; must be a loopback address", a.PprofListen)
		}
	}
}

func (a *Access) checkKeys(c *complaints) {
	check := func(name, key string) {
		if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
			c.bad(name, "a key must consist of visible ASCII characters, because it is sent in a header")
		}
	}
	for _, key := range a.APIKeys {
		if key == "" {
			c.bad("api-key", "a key is empty")
		}
		check("api-key", key)
	}
	check("engine-api-key", a.EngineAPIKey)
	check("admin-api-key", a.AdminAPIKey)
	if a.AdminAPIKey != "" && slices.Contains(a.APIKeys, a.AdminAPIKey) {
		c.bad("admin-api-key", "must differ from the keys of clients: every client could change the fleet")
	}
}

// checkNetworks requires InstanceAllow if others than the operator of this proxy can write to etcd: they
// could make the proxy send prompts anywhere.
func (a *Access) checkNetworks(c *complaints, etcd *Etcd) {
	if a.InstanceAllow == nil && !instance.AllLoopback(etcd.EtcdEndpoints) && etcd.EtcdUsername == "" && etcd.EtcdTLS.Files.Cert == "" {
		c.bad("instance-allow", "required, because etcd at %s is not on loopback and requires no password or certificate: every client that can write there "+
			"could make this proxy send prompts to any address. Name the networks your instances are in, e.g. --instance-allow 10.0.0.0/8 "+
			"(--instance-allow any takes all), or set --etcd-username and --etcd-password, or --etcd-cert", strings.Join(etcd.EtcdEndpoints, ","))
	}
}

// Origins has the settings of CORS; see httpapi.CORS.
type Origins struct {
	AllowedOrigins, AllowedMethods, AllowedHeaders settings.JSONList
	AllowCredentials                               bool
}

func (o *Origins) settings() settings.Table {
	return settings.About("CORS",
		settings.Setting{Name: "allowed-origins", Kind: settings.ListJSON, Usage: `origins whose web pages may use the proxy, such as '["https://chat.example.com"]', or '["*"]' for all; none by default, as in vLLM`, Into: &o.AllowedOrigins},
		settings.Setting{Name: "allowed-methods", Kind: settings.ListJSON, Default: `["*"]`, Rare: true, Usage: "HTTP methods that such pages may use", Into: &o.AllowedMethods},
		settings.Setting{Name: "allowed-headers", Kind: settings.ListJSON, Default: `["*"]`, Rare: true, Usage: "headers that such pages may send", Into: &o.AllowedHeaders},
		settings.Setting{Name: "allow-credentials", Kind: settings.OnOff, Default: "off", Rare: true, Usage: "whether such pages may send credentials, such as cookies", Into: &o.AllowCredentials},
	)
}

// check rejects origins that can never match, and names that cannot be in a header.
func (o *Origins) check(c *complaints) {
	for _, origin := range o.AllowedOrigins {
		u, err := url.Parse(origin)
		switch {
		case origin == "*", origin == "null":
		case err != nil, u.Scheme == "", u.Host == "", u.Scheme+"://"+u.Host != origin:
			c.bad("allowed-origins", "invalid origin %q: use https://host or https://host:port, without a path or a trailing slash", instance.Printable(origin, 80))
		}
	}
	for name, list := range map[string]settings.JSONList{"allowed-methods": o.AllowedMethods, "allowed-headers": o.AllowedHeaders} {
		for _, item := range list {
			if !isToken(item) {
				c.bad(name, "invalid name %q", instance.Printable(item, 80))
			}
		}
	}
}

// TLS has the certificates for clients and engines. Those for etcd are in Etcd and EmbeddedEtcd.
type TLS struct {
	// ListenerFiles are for TLS with clients; without a certificate, clients use plain HTTP. With a CA,
	// clients need a certificate.
	ListenerFiles certs.Files
	// EngineFiles are for TLS to engines with scheme https, and EngineServerName is the name in
	// their certificates where it is not the host of their address; each may be "".
	EngineFiles      certs.Files
	EngineServerName string
}

func (t *TLS) settings() settings.Table {
	return settings.About("TLS",
		settings.Setting{Name: "tls-cert", Kind: settings.Text, Usage: "PEM file of the certificate for clients, also at --admin-listen; both then accept only HTTPS", Into: &t.ListenerFiles.Cert},
		settings.Setting{Name: "tls-key", Kind: settings.Text, Usage: "PEM file of the key of --tls-cert", Into: &t.ListenerFiles.Key},
		settings.Setting{Name: "tls-client-ca", Kind: settings.Text, Usage: "PEM file of CAs; every client needs a certificate that one of them has signed", Into: &t.ListenerFiles.CA},
		settings.Setting{Name: "engine-ca", Kind: settings.Text, Usage: "PEM file of the CAs of the certificates of engines with https (default: the system's CAs)", Into: &t.EngineFiles.CA},
		settings.Setting{Name: "engine-cert", Kind: settings.Text, Rare: true, Usage: "PEM file of the client certificate for engines", Into: &t.EngineFiles.Cert},
		settings.Setting{Name: "engine-key", Kind: settings.Text, Rare: true, Usage: "PEM file of the key of --engine-cert", Into: &t.EngineFiles.Key},
		settings.Setting{Name: "engine-server-name", Kind: settings.Text, Rare: true, Usage: "name in the certificate of every engine (default: the host of its address)", Into: &t.EngineServerName},
	)
}

// check checks which files are set; their contents are checked when they are read.
func (t *TLS) check(c *complaints) {
	c.pair("tls", t.ListenerFiles)
	c.pair("engine", t.EngineFiles)
	if t.ListenerFiles.CA != "" && t.ListenerFiles.Cert == "" {
		c.bad("tls-client-ca", "requires TLS: set --tls-cert and --tls-key")
	}
	if name := t.EngineServerName; name != "" {
		if _, err := instance.ParseAddress(name + ":1"); err != nil {
			c.bad("engine-server-name", "invalid name %q: must be a host name or an address", instance.Printable(name, 80))
		}
	}
}
