package session

import (
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/etcdaccess"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Etcd says how etcd is reached.
type Etcd struct {
	Endpoints []string
	Prefix    string
	Username  string
	TLS       etcdaccess.TLS

	password     string
	passwordFile string
}

func (e *Etcd) register(fs *pflag.FlagSet) {
	fs.StringSliceVar(&e.Endpoints, "etcd-endpoints", []string{"127.0.0.1:2379"}, "host:port of each etcd member, comma separated, with https:// in front for TLS")
	fs.StringVar(&e.Prefix, "etcd-prefix", "/pd", "root of all keys")
	fs.StringVar(&e.Username, "etcd-username", "", "user of etcd")
	fs.StringVar(&e.password, "etcd-password", "", "its password; better given as PD_ETCD_PASSWORD")
	fs.StringVar(&e.passwordFile, "etcd-password-file", "", "file with that password in its first line")
	fs.StringVar(&e.TLS.Files.CA, "etcd-ca", "", "PEM file of the authorities that have signed etcd's certificate; means TLS (default the system's)")
	fs.StringVar(&e.TLS.Files.Cert, "etcd-cert", "", "PEM file of the certificate that etcd is shown, with --etcd-key")
	fs.StringVar(&e.TLS.Files.Key, "etcd-key", "", "PEM file of its key")
}

// settle checks these flags and reads the password.
func (e *Etcd) settle() error {
	if err := e.settleAccess(); err != nil {
		return err
	}
	if e.password != "" && e.Username == "" {
		return cli.Wrongf("--etcd-password without --etcd-username")
	}
	return e.settleEndpoints()
}

func (e *Etcd) settleAccess() error {
	if (e.TLS.Files.Cert == "") != (e.TLS.Files.Key == "") {
		return cli.Wrongf("give --etcd-cert and --etcd-key together")
	}
	switch {
	case e.passwordFile == "":
		return nil
	case e.password != "":
		return cli.Wrongf("--etcd-password-file and --etcd-password: give one of the two")
	}
	var err error
	if e.password, err = etcdaccess.ReadPassword(e.passwordFile); err != nil {
		return cli.Wrongf("--etcd-password-file: %w", err)
	}
	return nil
}

// settleEndpoints checks the endpoints and the prefix, so that a typing error
// is called one before anything is tried.
func (e *Etcd) settleEndpoints() error {
	out, https, err := etcdaccess.ParseEndpoints(e.Endpoints)
	switch {
	case err != nil:
		return cli.Wrongf("--etcd-endpoints: %w", err)
	case len(out) == 0:
		return cli.Wrongf("--etcd-endpoints is empty: give host:port, e.g. 127.0.0.1:2379")
	}
	e.Endpoints, e.TLS.On = out, https
	_, err = e.Layout()
	return err
}

// Layout says where the keys are. A prefix that cannot be one is wrong usage.
func (e *Etcd) Layout() (schema.Layout, error) {
	l, err := schema.NewLayout(e.Prefix)
	return l, cli.Wrong(err)
}

// Local tells whether every endpoint is on this machine's loopback.
func (e *Etcd) Local() bool {
	for _, address := range e.Endpoints {
		if !instance.IsLoopback(address) {
			return false
		}
	}
	return true
}
