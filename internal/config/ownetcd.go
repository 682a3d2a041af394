package config

import (
	"net/netip"

	"github.com/pdmesh/pdmesh/internal/certs"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// OwnEtcdFiles are the files by which the proxy's own etcd serves TLS.
func (p *Proxy) OwnEtcdFiles() certs.Files {
	return certs.Files{Cert: p.EtcdListenCert, Key: p.EtcdListenKey, CA: p.EtcdListenClientCA}
}

// checkOwnEtcd looks at the etcd that the proxy runs itself. Whoever writes there says
// where prompts go, so beyond loopback it has TLS and users.
func (p *Proxy) checkOwnEtcd(bad complaint) {
	secure := !p.OwnEtcdFiles().None()
	p.checkOwnAddress(bad, secure)
	if p.EtcdListenClientCA != "" && p.EtcdListenCert == "" {
		bad("etcd-listen-client-ca", "asks clients for certificates, which takes TLS: give --etcd-listen-cert and --etcd-listen-key")
	}
	if !secure {
		for _, f := range []struct{ name, path string }{{"etcd-ca", p.EtcdCA}, {"etcd-cert", p.EtcdCert}, {"etcd-key", p.EtcdKey}} {
			if f.path != "" {
				bad(f.name, "is for an etcd that is reached over TLS, and the proxy's own speaks it with --etcd-listen-cert only; give that or --etcd-endpoints, or leave it out")
			}
		}
		return
	}
	if p.EtcdCA == "" {
		bad("etcd-ca", "needed, because the proxy is a client of its own etcd and that speaks TLS (--etcd-listen-cert): give the authority that has signed this certificate")
	}
	if p.EtcdListenClientCA != "" && p.EtcdCert == "" {
		bad("etcd-cert", "needed, because the proxy's own etcd asks for certificates (--etcd-listen-client-ca) and the proxy is a client of it, too: give --etcd-cert and --etcd-key")
	}
	if p.sources["etcd-gateway"] != "" && p.EtcdGateway {
		bad("etcd-gateway", "is not to be had with --etcd-listen-cert: nodes then register with agent or etcdctl")
	}
}

// checkOwnAddress looks at where it listens.
func (p *Proxy) checkOwnAddress(bad complaint, secure bool) {
	const how = "give --etcd-listen-cert, --etcd-listen-key and --etcd-ca, set up users with \"pdctl auth init\", and give --etcd-username pd-proxy and --etcd-password-file (docs/tls.md)"
	every, _ := netip.ParseAddrPort(p.EtcdListen)
	address, err := etcdAddress(p.EtcdListen)
	switch {
	case every.Addr().IsUnspecified() && secure:
		bad("etcd-listen", "%s: name the address that agents and other proxies reach, as it stands in the certificate", p.EtcdListen)
	case !secure && (every.Addr().IsUnspecified() || err == nil && !instance.IsLoopback(address)):
		bad("etcd-listen", "%s is not a loopback address, and without TLS and users whoever reaches the proxy's own etcd could send prompts anywhere. "+
			"Use 127.0.0.1; or "+how+"; or run an etcd yourself and give --etcd-endpoints https://...", p.EtcdListen)
	case err != nil:
		bad("etcd-listen", "%w", err)
	case instance.IsLoopback(address):
	case !every.IsValid():
		bad("etcd-listen", "%s: give the address as a number", p.EtcdListen)
	case p.EtcdUsername == "":
		bad("etcd-username", "needed, because %s is not a loopback address and the proxy's own etcd serves other machines with users only: "+how, p.EtcdListen)
	}
}
