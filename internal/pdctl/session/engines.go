package session

import (
	"net/http"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Engines holds the settings for requests to engines: the API key and the TLS files.
type Engines struct {
	Files certs.Files
	key   string
	name  string
}

func (x *Engines) settings() settings.Table {
	return settings.About("Engines",
		settings.Setting{Name: "engine-api-key", Kind: settings.Text, Secret: true, Env: []string{"OPENAI_API_KEY"}, Usage: "API key of the engines; better set PD_ENGINE_API_KEY or OPENAI_API_KEY", Into: &x.key},
		settings.Setting{Name: "engine-ca", Kind: settings.Text, Usage: "for engines with https: PEM file of the CAs of their certificates (default: the system's CAs)", Into: &x.Files.CA},
		settings.Setting{Name: "engine-cert", Kind: settings.Text, Usage: "for engines with https: PEM file of the client certificate", Into: &x.Files.Cert},
		settings.Setting{Name: "engine-key", Kind: settings.Text, Usage: "PEM file of the key of --engine-cert", Into: &x.Files.Key},
		settings.Setting{Name: "engine-server-name", Kind: settings.Text, Usage: "name in the engines' certificates (default: the host of the address)", Into: &x.name},
	)
}

// Register adds the flags to a command that queries engines.
func (x *Engines) Register(fs *pflag.FlagSet) { x.settings().Register(fs) }

// Client returns an HTTP client with these settings.
func (x *Engines) Client() (*vllm.Client, error) {
	if (x.Files.Cert == "") != (x.Files.Key == "") {
		return nil, cli.Wrongf("set --engine-cert and --engine-key together")
	}
	source, err := certs.Open(certs.Options{Use: certs.UseEngines, Files: x.Files, ServerName: x.name})
	if err != nil {
		return nil, cli.Wrongf("certificates for engines: %w", err)
	}
	return &vllm.Client{HTTP: &http.Client{Transport: vllm.SecureTransport(source.Client)}, APIKey: x.key}, nil
}
