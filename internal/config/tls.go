package config

import (
	"github.com/pdmesh/pdmesh/internal/certs"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ListenerFiles are the files for TLS with clients.
func (p *Proxy) ListenerFiles() certs.Files {
	return certs.Files{Cert: p.TLSCert, Key: p.TLSKey, CA: p.TLSClientCA}
}

// EngineFiles are the files for TLS with engines.
func (p *Proxy) EngineFiles() certs.Files {
	return certs.Files{Cert: p.EngineCert, Key: p.EngineKey, CA: p.EngineCA}
}

// checkTLS looks at which files go together. What is in them is seen when they are read.
func (p *Proxy) checkTLS(bad complaint) {
	pair := func(certName, cert, keyName, key string) {
		switch {
		case cert != "" && key == "":
			bad(certName, "needs its key: give --%s", keyName)
		case cert == "" && key != "":
			bad(keyName, "needs its certificate: give --%s", certName)
		}
	}
	pair("tls-cert", p.TLSCert, "tls-key", p.TLSKey)
	pair("engine-cert", p.EngineCert, "engine-key", p.EngineKey)
	pair("etcd-cert", p.EtcdCert, "etcd-key", p.EtcdKey)
	pair("etcd-listen-cert", p.EtcdListenCert, "etcd-listen-key", p.EtcdListenKey)
	if p.TLSClientCA != "" && p.TLSCert == "" {
		bad("tls-client-ca", "asks clients for certificates, which takes TLS: give --tls-cert and --tls-key")
	}
	if name := p.EngineServerName; name != "" {
		if _, err := instance.ParseAddress(name + ":1"); err != nil {
			bad("engine-server-name", "%q is no name in a certificate; give a host name or an address", instance.Printable(name, 80))
		}
	}
	if p.EtcdPasswordFile != "" && p.sources["etcd-password"] != "file "+p.EtcdPasswordFile {
		bad("etcd-password-file", "and --etcd-password: give one of the two")
	}
}
