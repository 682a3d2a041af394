package session

import (
	"errors"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Etcd holds the settings for the connection to etcd.
type Etcd struct {
	Endpoints    []string
	Prefix       string
	Username     string
	PasswordFile string
	TLS          access.TLS
	Layout       schema.Layout // of the keys below Prefix

	password string
}

func (e *Etcd) settings() settings.Table {
	return settings.About("etcd",
		settings.Setting{Name: "etcd-endpoints", Kind: settings.List, Default: "127.0.0.1:2379", Usage: "host:port of each etcd member, separated by commas, with https:// in front for TLS", Into: &e.Endpoints},
		settings.Setting{Name: "etcd-prefix", Kind: settings.Text, Default: "/pd", Usage: "root of all keys in etcd", Into: &e.Prefix},
		settings.Setting{Name: "etcd-username", Kind: settings.Text, Usage: "etcd user", Into: &e.Username},
		settings.Setting{Name: "etcd-password", Kind: settings.Text, Secret: true, Usage: "password of that user; better set PD_ETCD_PASSWORD", Into: &e.password},
		settings.Setting{Name: "etcd-password-file", Kind: settings.Text, Usage: "file whose first line is that password", Into: &e.PasswordFile},
		settings.Setting{Name: "etcd-ca", Kind: settings.Text, Usage: "PEM file of the CAs of etcd's certificate; turns TLS on (default: the system's CAs)", Into: &e.TLS.Files.CA},
		settings.Setting{Name: "etcd-cert", Kind: settings.Text, Usage: "PEM file of the client certificate for etcd", Into: &e.TLS.Files.Cert},
		settings.Setting{Name: "etcd-key", Kind: settings.Text, Usage: "PEM file of the key of --etcd-cert", Into: &e.TLS.Files.Key},
	)
}

// settle checks these settings and reads the password.
func (e *Etcd) settle(from settings.Sources) error {
	if (e.TLS.Files.Cert == "") != (e.TLS.Files.Key == "") {
		return errors.New("set --etcd-cert and --etcd-key together")
	}
	var err error
	if e.password, err = access.Password(e.password, e.PasswordFile); err != nil {
		return from.Complain("etcd-password-file", err)
	}
	if (e.password == "") != (e.Username == "") {
		return errors.New("set --etcd-username and --etcd-password (or PD_ETCD_PASSWORD) together")
	}
	out, https, err := access.ParseEndpoints(e.Endpoints)
	switch {
	case err != nil:
		return from.Complain("etcd-endpoints", err)
	case len(out) == 0:
		return from.Complain("etcd-endpoints", errors.New("is empty: set host:port, e.g. 127.0.0.1:2379"))
	}
	e.Endpoints, e.TLS.On = out, https
	if e.Layout, err = schema.NewLayout(e.Prefix); err != nil {
		return from.Complain("etcd-prefix", err)
	}
	return nil
}

// Local reports whether every endpoint is on this machine's loopback.
func (e *Etcd) Local() bool { return instance.AllLoopback(e.Endpoints) }
