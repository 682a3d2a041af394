package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// EmbeddedEtcd has the settings of the etcd that the proxy runs without --etcd-endpoints.
type EmbeddedEtcd struct {
	EtcdListen string // host:port of the client port
	// EmbeddedEtcdFiles are for TLS at that port, which without them is plain and on loopback. With a
	// CA, clients need a certificate.
	EmbeddedEtcdFiles certs.Files

	EtcdDataDir string // never empty while etcd is embedded
	EtcdGateway bool   // whether it has etcd's JSON gateway
}

func (e *EmbeddedEtcd) settings() settings.Table {
	return settings.About("Embedded etcd",
		settings.Setting{Name: "etcd-listen", Kind: settings.Text, Default: "127.0.0.1:2379", Usage: "address of the embedded etcd, host:port; other than loopback only with TLS and users", Into: &e.EtcdListen},
		settings.Setting{Name: "etcd-listen-cert", Kind: settings.Text, Rare: true, Usage: "PEM file of the certificate of the embedded etcd; turns TLS on", Into: &e.EmbeddedEtcdFiles.Cert},
		settings.Setting{Name: "etcd-listen-key", Kind: settings.Text, Rare: true, Usage: "PEM file of the key of --etcd-listen-cert", Into: &e.EmbeddedEtcdFiles.Key},
		settings.Setting{Name: "etcd-listen-client-ca", Kind: settings.Text, Rare: true, Usage: "PEM file of CAs; clients of the embedded etcd need a certificate that one of them has signed", Into: &e.EmbeddedEtcdFiles.CA},
		settings.Setting{Name: "etcd-data-dir", Kind: settings.Text, Usage: "data directory of the embedded etcd (default: pdmesh/etcd-<port> in the user's state directory)", Into: &e.EtcdDataDir},
		settings.Setting{Name: "etcd-gateway", Kind: settings.OnOff, Default: "on", Rare: true, Usage: "JSON gateway of the embedded etcd, for nodes that register with curl", Into: &e.EtcdGateway},
	)
}

// complete sets the canonical address and the default data directory.
func (e *EmbeddedEtcd) complete(c *complaints, lookupEnv func(string) (string, bool)) {
	if address, err := instance.ParseAddress(e.EtcdListen); err == nil {
		e.EtcdListen = address // check reports an error
	}
	if e.EtcdDataDir != "" {
		return
	}
	dir, err := stateDir(lookupEnv)
	if err != nil {
		c.bad("etcd-data-dir", "%w", err)
		return
	}
	e.EtcdDataDir = filepath.Join(dir, "etcd-"+e.EtcdListen[strings.LastIndexByte(e.EtcdListen, ':')+1:])
}

// check reports settings that contradict each other or those of the proxy as a client.
// Every writer to etcd decides where prompts are sent, so other machines need TLS and users.
func (e *EmbeddedEtcd) check(c *complaints, client *Etcd) {
	c.pair("etcd-listen", e.EmbeddedEtcdFiles)
	if !client.Embedded() {
		e.checkUnused(c)
		return
	}
	secure := !e.EmbeddedEtcdFiles.None()
	e.checkAddress(c, client, secure)
	if e.EmbeddedEtcdFiles.CA != "" && e.EmbeddedEtcdFiles.Cert == "" {
		c.bad("etcd-listen-client-ca", "requires TLS: set --etcd-listen-cert and --etcd-listen-key")
	}
	if !secure {
		for _, f := range []struct{ name, path string }{{"etcd-ca", client.EtcdTLS.Files.CA}, {"etcd-cert", client.EtcdTLS.Files.Cert}, {"etcd-key", client.EtcdTLS.Files.Key}} {
			if f.path != "" {
				c.bad(f.name, "requires TLS with etcd: set --etcd-endpoints, or --etcd-listen-cert for the embedded etcd, or remove it")
			}
		}
		return
	}
	if client.EtcdTLS.Files.CA == "" {
		c.bad("etcd-ca", "missing: the proxy is a client of the embedded etcd, which uses TLS (--etcd-listen-cert): set the CA that signed this certificate")
	}
	if e.EmbeddedEtcdFiles.CA != "" && client.EtcdTLS.Files.Cert == "" {
		c.bad("etcd-cert", "missing: the embedded etcd requires client certificates (--etcd-listen-client-ca), and the proxy is a client of it: set --etcd-cert and --etcd-key")
	}
	if c.sources["etcd-gateway"] != "" && e.EtcdGateway {
		c.bad("etcd-gateway", "not available with --etcd-listen-cert: register nodes with agent or etcdctl")
	}
}

// checkAddress checks the address on which the embedded etcd listens.
func (e *EmbeddedEtcd) checkAddress(c *complaints, client *Etcd, secure bool) {
	const cure = "set --etcd-listen-cert, --etcd-listen-key and --etcd-ca, create users with \"pdctl auth init\", and set --etcd-username pd-proxy and --etcd-password-file (docs/tls.md)"
	every, _ := netip.ParseAddrPort(e.EtcdListen)
	address, err := etcdAddress(e.EtcdListen)
	switch {
	case every.Addr().IsUnspecified() && secure:
		c.bad("etcd-listen", "%s: name the address that agents and other proxies connect to, as in the certificate", e.EtcdListen)
	case !secure && (every.Addr().IsUnspecified() || err == nil && !instance.IsLoopback(address)):
		c.bad("etcd-listen", "%s is not a loopback address, and without TLS and users every client of the embedded etcd could send prompts anywhere. "+
			"Use 127.0.0.1; or "+cure+"; or run a separate etcd and set --etcd-endpoints https://...", e.EtcdListen)
	case err != nil:
		c.bad("etcd-listen", "%w", err)
	case instance.IsLoopback(address):
	case !every.IsValid():
		c.bad("etcd-listen", "%s: must be an IP address", e.EtcdListen)
	case client.EtcdUsername == "":
		c.bad("etcd-username", "missing: %s is not a loopback address, and the embedded etcd serves other machines only with users: "+cure, e.EtcdListen)
	}
}

// checkUnused refuses settings of the embedded etcd next to --etcd-endpoints.
func (e *EmbeddedEtcd) checkUnused(c *complaints) {
	for _, name := range []string{"etcd-listen", "etcd-listen-cert", "etcd-listen-key", "etcd-listen-client-ca", "etcd-data-dir"} {
		if src := c.sources[name]; src != "" {
			c.bad(name, "is for the embedded etcd, which does not run with --etcd-endpoints (%s); remove one of the two", c.sources["etcd-endpoints"])
		}
	}
}

// etcdAddress is ParseAddress with errors that do not mention instances.
func etcdAddress(s string) (string, error) {
	address, err := instance.ParseAddress(s)
	if err != nil {
		return "", fmt.Errorf("%w%s", settings.ErrValue, strings.TrimPrefix(err.Error(), instance.ErrAddress.Error()))
	}
	return address, nil
}
