package config

import (
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// TLS has the certificates for clients and engines. Those for etcd are in Etcd and EmbeddedEtcd.
type TLS struct {
	// Files for TLS with clients; without TLSCert they speak plain HTTP. TLSClientCA makes
	// them show a certificate.
	TLSCert, TLSKey, TLSClientCA string
	// Files for TLS to engines with scheme https, and the name in their certificates
	// where it is not the host of their address; each may be "".
	EngineCA, EngineCert, EngineKey, EngineServerName string
}

func (t *TLS) settings() settings.Table {
	return settings.About("TLS",
		settings.Setting{Name: "tls-cert", Kind: settings.Text, Usage: "PEM file of the certificate for clients, also at --admin-listen; both then accept only HTTPS", Into: &t.TLSCert},
		settings.Setting{Name: "tls-key", Kind: settings.Text, Usage: "PEM file of the key of --tls-cert", Into: &t.TLSKey},
		settings.Setting{Name: "tls-client-ca", Kind: settings.Text, Usage: "PEM file of CAs; every client needs a certificate that one of them has signed", Into: &t.TLSClientCA},
		settings.Setting{Name: "engine-ca", Kind: settings.Text, Usage: "PEM file of the CAs of the certificates of engines with https (default: the system's CAs)", Into: &t.EngineCA},
		settings.Setting{Name: "engine-cert", Kind: settings.Text, Rare: true, Usage: "PEM file of the client certificate for engines", Into: &t.EngineCert},
		settings.Setting{Name: "engine-key", Kind: settings.Text, Rare: true, Usage: "PEM file of the key of --engine-cert", Into: &t.EngineKey},
		settings.Setting{Name: "engine-server-name", Kind: settings.Text, Rare: true, Usage: "name in the certificate of every engine (default: the host of its address)", Into: &t.EngineServerName},
	)
}

// ListenerFiles returns the files for TLS with clients.
func (t *TLS) ListenerFiles() certs.Files {
	return certs.Files{Cert: t.TLSCert, Key: t.TLSKey, CA: t.TLSClientCA}
}

// EngineFiles returns the files for TLS with engines.
func (t *TLS) EngineFiles() certs.Files {
	return certs.Files{Cert: t.EngineCert, Key: t.EngineKey, CA: t.EngineCA}
}

// check checks which files are set; their contents are checked when they are read.
func (t *TLS) check(c *complaints) {
	c.pair("tls-cert", t.TLSCert, "tls-key", t.TLSKey)
	c.pair("engine-cert", t.EngineCert, "engine-key", t.EngineKey)
	if t.TLSClientCA != "" && t.TLSCert == "" {
		c.bad("tls-client-ca", "requires TLS: set --tls-cert and --tls-key")
	}
	if name := t.EngineServerName; name != "" {
		if _, err := instance.ParseAddress(name + ":1"); err != nil {
			c.bad("engine-server-name", "invalid name %q: must be a host name or an address", instance.Printable(name, 80))
		}
	}
}
