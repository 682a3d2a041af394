package setup

import (
	"fmt"

	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Secured has the TLS files for the engine and etcd.
type Secured struct {
	Engine     certs.Files
	ServerName string // in the engine's certificate; "" for the host of its address
	Etcd       access.TLS
}

// readTLS checks the settings about TLS and reads the password of etcd in a file.
func (r *reader) readTLS(c *Config) {
	for prefix, f := range map[string]certs.Files{"engine": c.TLS.Engine, "etcd": c.TLS.Etcd.Files} {
		if (f.Cert == "") != (f.Key == "") {
			r.fail(prefix+"-cert", fmt.Errorf("set --%s-cert and --%s-key together", prefix, prefix))
		}
	}
	password, err := access.Password(c.EtcdPassword, r.passwordFile)
	if err != nil {
		r.fail("etcd-password-file", err)
	}
	c.EtcdPassword = password
}
