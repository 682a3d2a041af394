package session

import (
	"net/http"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/certs"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

// Engines says by which files engines are asked over TLS.
type Engines struct {
	Files certs.Files
	name  string
}

// Register gives a command that asks engines the flags.
func (x *Engines) Register(fs *pflag.FlagSet) {
	fs.StringVar(&x.Files.CA, "engine-ca", "", "with --https: PEM file of the authorities that have signed the engines' certificates (default the system's)")
	fs.StringVar(&x.Files.Cert, "engine-cert", "", "with --https: PEM file of the certificate that engines are shown, with --engine-key")
	fs.StringVar(&x.Files.Key, "engine-key", "", "PEM file of its key")
	fs.StringVar(&x.name, "engine-server-name", "", "name that the engines' certificates must bear (default the host of the address)")
}

// Client asks engines by them.
func (x *Engines) Client(apiKey string) (*vllm.Client, error) {
	if (x.Files.Cert == "") != (x.Files.Key == "") {
		return nil, cli.Wrongf("give --engine-cert and --engine-key together")
	}
	source, err := certs.Open(certs.Options{Use: certs.UseEngines, Files: x.Files, ServerName: x.name})
	if err != nil {
		return nil, cli.Wrongf("certificates for engines: %w", err)
	}
	return &vllm.Client{HTTP: &http.Client{Transport: vllm.SecureTransport(source.Client)}, APIKey: apiKey}, nil
}
