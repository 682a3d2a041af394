package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/pdmesh/pdmesh/internal/certs"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/settings"
)

// OwnEtcd is how the proxy runs an etcd, when no other one is named.
type OwnEtcd struct {
	EtcdListen string // host:port of the embedded etcd's client port
	// Files for TLS there; without EtcdListenCert it is plain, and on loopback.
	// EtcdListenClientCA makes its clients show a certificate.
	EtcdListenCert, EtcdListenKey, EtcdListenClientCA string

	EtcdDataDir string // never empty while etcd is embedded
	EtcdGateway bool   // the embedded etcd's JSON gateway
}

// settings are about the etcd that the proxy runs without --etcd-endpoints.
func (o *OwnEtcd) settings() settings.Table {
	return settings.About("Embedded etcd",
		settings.Setting{Name: "etcd-listen", Kind: settings.Text, Default: "127.0.0.1:2379", Usage: "address of the proxy's own etcd, host:port; other than loopback only with TLS and users", Into: &o.EtcdListen},
		settings.Setting{Name: "etcd-listen-cert", Kind: settings.Text, Rare: true, Usage: "PEM file of the certificate of the proxy's own etcd; turns TLS on", Into: &o.EtcdListenCert},
		settings.Setting{Name: "etcd-listen-key", Kind: settings.Text, Rare: true, Usage: "PEM file of the key of --etcd-listen-cert", Into: &o.EtcdListenKey},
		settings.Setting{Name: "etcd-listen-client-ca", Kind: settings.Text, Rare: true, Usage: "PEM file of CAs; clients of the proxy's own etcd need a certificate that one of them has signed", Into: &o.EtcdListenClientCA},
		settings.Setting{Name: "etcd-data-dir", Kind: settings.Text, Usage: "data directory of the proxy's own etcd (default: pdmesh/etcd-<port> in the user's state directory)", Into: &o.EtcdDataDir},
		settings.Setting{Name: "etcd-gateway", Kind: settings.OnOff, Default: "on", Rare: true, Usage: "JSON gateway of the proxy's own etcd, for nodes that register with curl", Into: &o.EtcdGateway},
	)
}

// OwnEtcdFiles are the files by which the proxy's own etcd serves TLS.
func (o *OwnEtcd) OwnEtcdFiles() certs.Files {
	return certs.Files{Cert: o.EtcdListenCert, Key: o.EtcdListenKey, CA: o.EtcdListenClientCA}
}

// complete finds a directory for what it keeps.
func (o *OwnEtcd) complete(c *complaints, lookupEnv func(string) (string, bool)) {
	if address, err := instance.ParseAddress(o.EtcdListen); err == nil {
		o.EtcdListen = address // if not, check says so
	}
	if o.EtcdDataDir != "" {
		return
	}
	dir, err := stateDir(lookupEnv)
	if err != nil {
		c.bad("etcd-data-dir", "%w", err)
		return
	}
	o.EtcdDataDir = filepath.Join(dir, "etcd-"+o.EtcdListen[strings.LastIndexByte(o.EtcdListen, ':')+1:])
}

// check looks at the etcd that the proxy runs itself and is a client of. Whoever writes
// there says where prompts go, so beyond loopback it has TLS and users.
func (o *OwnEtcd) check(c *complaints, client *Etcd) {
	c.pair("etcd-listen-cert", o.EtcdListenCert, "etcd-listen-key", o.EtcdListenKey)
	if !client.Embedded() {
		o.checkUnused(c)
		return
	}
	secure := !o.OwnEtcdFiles().None()
	o.checkAddress(c, client, secure)
	if o.EtcdListenClientCA != "" && o.EtcdListenCert == "" {
		c.bad("etcd-listen-client-ca", "asks clients for certificates, which takes TLS: give --etcd-listen-cert and --etcd-listen-key")
	}
	if !secure {
		for _, f := range []struct{ name, path string }{{"etcd-ca", client.EtcdCA}, {"etcd-cert", client.EtcdCert}, {"etcd-key", client.EtcdKey}} {
			if f.path != "" {
				c.bad(f.name, "is for an etcd that is reached over TLS, and the proxy's own speaks it with --etcd-listen-cert only; give that or --etcd-endpoints, or leave it out")
			}
		}
		return
	}
	if client.EtcdCA == "" {
		c.bad("etcd-ca", "needed, because the proxy is a client of its own etcd and that speaks TLS (--etcd-listen-cert): give the authority that has signed this certificate")
	}
	if o.EtcdListenClientCA != "" && client.EtcdCert == "" {
		c.bad("etcd-cert", "needed, because the proxy's own etcd asks for certificates (--etcd-listen-client-ca) and the proxy is a client of it, too: give --etcd-cert and --etcd-key")
	}
	if c.sources["etcd-gateway"] != "" && o.EtcdGateway {
		c.bad("etcd-gateway", "is not to be had with --etcd-listen-cert: nodes then register with agent or etcdctl")
	}
}

// checkAddress looks at where it listens.
func (o *OwnEtcd) checkAddress(c *complaints, client *Etcd, secure bool) {
	const how = "give --etcd-listen-cert, --etcd-listen-key and --etcd-ca, set up users with \"pdctl auth init\", and give --etcd-username pd-proxy and --etcd-password-file (docs/tls.md)"
	every, _ := netip.ParseAddrPort(o.EtcdListen)
	address, err := etcdAddress(o.EtcdListen)
	switch {
	case every.Addr().IsUnspecified() && secure:
		c.bad("etcd-listen", "%s: name the address that agents and other proxies reach, as it stands in the certificate", o.EtcdListen)
	case !secure && (every.Addr().IsUnspecified() || err == nil && !instance.IsLoopback(address)):
		c.bad("etcd-listen", "%s is not a loopback address, and without TLS and users whoever reaches the proxy's own etcd could send prompts anywhere. "+
			"Use 127.0.0.1; or "+how+"; or run an etcd yourself and give --etcd-endpoints https://...", o.EtcdListen)
	case err != nil:
		c.bad("etcd-listen", "%w", err)
	case instance.IsLoopback(address):
	case !every.IsValid():
		c.bad("etcd-listen", "%s: give the address as a number", o.EtcdListen)
	case client.EtcdUsername == "":
		c.bad("etcd-username", "needed, because %s is not a loopback address and the proxy's own etcd serves other machines with users only: "+how, o.EtcdListen)
	}
}

// checkUnused refuses what is said of it while another etcd is named.
func (o *OwnEtcd) checkUnused(c *complaints) {
	for _, name := range []string{"etcd-listen", "etcd-listen-cert", "etcd-listen-key", "etcd-listen-client-ca", "etcd-data-dir"} {
		if src := c.sources[name]; src != "" {
			c.bad(name, "is for the proxy's own etcd, but --etcd-endpoints (%s) says to use another; give one of the two", c.sources["etcd-endpoints"])
		}
	}
}

// etcdAddress is ParseAddress with errors that do not speak of instances.
func etcdAddress(s string) (string, error) {
	address, err := instance.ParseAddress(s)
	if err != nil {
		return "", fmt.Errorf("%w%s", settings.ErrValue, strings.TrimPrefix(err.Error(), instance.ErrAddress.Error()))
	}
	return address, nil
}
