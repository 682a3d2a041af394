package config

import (
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

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
