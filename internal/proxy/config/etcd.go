package config

import (
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
)

// Etcd has the settings of the connection to etcd.
type Etcd struct {
	// EtcdEndpoints are host:port of an external etcd; without any the proxy runs
	// EmbeddedEtcd.
	EtcdEndpoints []string
	EtcdUsername  string
	EtcdPassword  string
	// EtcdPasswordFile is the file from which LoadProxy reads EtcdPassword; may be "".
	EtcdPasswordFile string
	EtcdTLS          access.TLS
	EtcdPrefix       string // root of all keys, no trailing slash
}

func (e *Etcd) settings() settings.Table {
	return settings.About("etcd",
		settings.Setting{Name: "etcd-endpoints", Kind: settings.List, Spread: true, Usage: "addresses of etcd, host:port, with https:// in front for TLS; its other members are found and used, too; empty means that the proxy runs an embedded etcd", Into: &e.EtcdEndpoints},
		settings.Setting{Name: "etcd-username", Kind: settings.Text, Usage: "etcd user; pdctl auth init creates pd-proxy", Into: &e.EtcdUsername},
		settings.Setting{Name: "etcd-password", Kind: settings.Text, Secret: true, Rare: true, Usage: "password of that user; better set PD_ETCD_PASSWORD", Into: &e.EtcdPassword},
		settings.Setting{Name: "etcd-password-file", Kind: settings.Text, Usage: "file whose first line is that password", Into: &e.EtcdPasswordFile},
		settings.Setting{Name: "etcd-ca", Kind: settings.Text, Usage: "PEM file of the CAs of etcd's certificate; turns TLS on (default: the system's CAs)", Into: &e.EtcdTLS.Files.CA},
		settings.Setting{Name: "etcd-cert", Kind: settings.Text, Rare: true, Usage: "PEM file of the client certificate for etcd; read again when it changes, like all certificate files", Into: &e.EtcdTLS.Files.Cert},
		settings.Setting{Name: "etcd-key", Kind: settings.Text, Rare: true, Usage: "PEM file of the key of --etcd-cert", Into: &e.EtcdTLS.Files.Key},
		settings.Setting{Name: "etcd-prefix", Kind: settings.Text, Default: "/pd", Usage: "root of all keys in etcd", Into: &e.EtcdPrefix},
	)
}

// Embedded reports whether this proxy runs an embedded etcd.
func (e *Etcd) Embedded() bool { return len(e.EtcdEndpoints) == 0 }

// complete parses the endpoints and reads the password file.
func (e *Etcd) complete(c *complaints) {
	endpoints, https, err := access.ParseEndpoints(e.EtcdEndpoints)
	if err != nil {
		c.bad("etcd-endpoints", "%w", err)
	}
	e.EtcdEndpoints, e.EtcdTLS.On = endpoints, https
	password, err := access.Password(e.EtcdPassword, e.EtcdPasswordFile)
	if err != nil {
		c.bad("etcd-password-file", "%w", err)
	} else if password != e.EtcdPassword {
		e.EtcdPassword, c.sources["etcd-password"] = password, "file "+e.EtcdPasswordFile
	}
	e.EtcdPrefix = strings.TrimRight(e.EtcdPrefix, "/")
}

func (e *Etcd) check(c *complaints) {
	if _, err := schema.NewLayout(e.EtcdPrefix); err != nil {
		c.bad("etcd-prefix", "%w", err)
	}
	if (e.EtcdUsername == "") != (e.EtcdPassword == "") {
		c.bad("etcd-username", "set --etcd-username and --etcd-password (or PD_ETCD_PASSWORD) together")
	}
	c.pair("etcd", e.EtcdTLS.Files)
}
