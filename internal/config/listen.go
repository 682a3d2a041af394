package config

import (
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/settings"
)

// Listen is where a proxy listens for clients, and in which way.
type Listen struct {
	Host            string
	Port            int
	TLSCert, TLSKey string // "": plain HTTP
}

// LoadListen gives where the proxy listens that the same flags, environment
// and file start, and nothing else: whoever asks a running proxy how it is need
// not know all that the proxy was started with. The parameters are those of
// LoadProxy.
func LoadListen(fs *pflag.FlagSet, lookupEnv func(string) (string, bool)) (Listen, error) {
	var p Proxy
	v, err := p.Settings().Load(fs, lookupEnv, "")
	if err != nil {
		return Listen{}, err
	}
	p.sources = v.Sources
	if err := v.Fill("host", "port", "tls-cert", "tls-key"); err != nil {
		return Listen{}, err
	}
	if p.Port < 1 || p.Port > 65535 {
		return Listen{}, p.complain("port", "%w: %d: say which port the running proxy has", settings.ErrValue, p.Port)
	}
	return Listen{Host: p.Host, Port: p.Port, TLSCert: p.TLSCert, TLSKey: p.TLSKey}, nil
}
