package pdctl

import (
	"net/http"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/certs"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/etcdaccess"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

// access says how etcd is reached, beside its endpoints and the user.
type access struct {
	etcd         etcdaccess.TLS
	passwordFile string
}

func (x *access) register(fs *pflag.FlagSet) {
	fs.StringVar(&x.passwordFile, "etcd-password-file", "", "file with that password in its first line")
	fs.StringVar(&x.etcd.Files.CA, "etcd-ca", "", "PEM file of the authorities that have signed etcd's certificate; means TLS (default the system's)")
	fs.StringVar(&x.etcd.Files.Cert, "etcd-cert", "", "PEM file of the certificate that etcd is shown, with --etcd-key")
	fs.StringVar(&x.etcd.Files.Key, "etcd-key", "", "PEM file of its key")
}

// settleAccess checks these flags and reads the password.
func (a *app) settleAccess() error {
	x := &a.access
	if (x.etcd.Files.Cert == "") != (x.etcd.Files.Key == "") {
		return usagef("give --etcd-cert and --etcd-key together")
	}
	switch {
	case x.passwordFile == "":
		return nil
	case a.password != "":
		return usagef("--etcd-password-file and --etcd-password: give one of the two")
	}
	var err error
	if a.password, err = etcdaccess.ReadPassword(x.passwordFile); err != nil {
		return usagef("--etcd-password-file: %w", err)
	}
	return nil
}

// engineFlags say by which files engines are asked over TLS.
type engineFlags struct {
	files certs.Files
	name  string
}

func (x *engineFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&x.files.CA, "engine-ca", "", "with --https: PEM file of the authorities that have signed the engines' certificates (default the system's)")
	fs.StringVar(&x.files.Cert, "engine-cert", "", "with --https: PEM file of the certificate that engines are shown, with --engine-key")
	fs.StringVar(&x.files.Key, "engine-key", "", "PEM file of its key")
	fs.StringVar(&x.name, "engine-server-name", "", "name that the engines' certificates must bear (default the host of the address)")
}

// client asks engines by them.
func (x *engineFlags) client(apiKey string) (*vllm.Client, error) {
	if (x.files.Cert == "") != (x.files.Key == "") {
		return nil, usagef("give --engine-cert and --engine-key together")
	}
	source, err := certs.Open(certs.Options{Use: certs.UseEngines, Files: x.files, ServerName: x.name})
	if err != nil {
		return nil, cli.Wrongf("certificates for engines: %w", err)
	}
	return &vllm.Client{HTTP: &http.Client{Transport: vllm.SecureTransport(source.Client)}, APIKey: apiKey}, nil
}
