package config

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/settings"
)

// LoadProxy builds the configuration of a proxy. fs must hold the flags of
// RegisterProxyFlags and be parsed; lookupEnv is os.LookupEnv or replaces
// it. An environment variable that is set but empty counts as not set. The
// error lists everything that is wrong, a line each.
func LoadProxy(fs *pflag.FlagSet, lookupEnv func(string) (string, bool)) (Proxy, error) {
	var p Proxy
	v, err := p.Settings().Load(fs, lookupEnv, "")
	if err != nil {
		return Proxy{}, err
	}
	p.sources = v.Sources
	if err := errors.Join(v.Fill(), p.applyReference(fs)); err != nil {
		return Proxy{}, err
	}
	if err := p.complete(lookupEnv); err != nil {
		return Proxy{}, err
	}
	if err := p.Validate(); err != nil {
		return Proxy{}, err
	}
	return p, nil
}

// Print writes the configuration as a YAML file that --config takes. What is for the
// proxy's own etcd is left open where there is another one.
func (p *Proxy) Print(w io.Writer) error {
	own := p.OwnEtcd.settings()
	return p.Settings().Print(w, func(s settings.Setting) (any, string) {
		if _, ok := own.Find(s.Name); ok && !p.Embedded() && p.sources[s.Name] == "" {
			return nil, ""
		}
		if s.Name == "etcd-endpoints" && !p.Embedded() {
			return access.Written(p.EtcdEndpoints, p.EtcdHTTPS), p.sources[s.Name]
		}
		return s.Into, p.sources[s.Name]
	})
}

// Listen is where a proxy listens for clients, and in which way.
type Listen struct {
	Host            string
	Port            int
	TLSCert, TLSKey string // "": plain HTTP
}

// LoadListen returns where the proxy listens that the same flags, environment
// and file start, and nothing else: whatever asks a running proxy how it is need
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
		return Listen{}, p.sources.Complain("port", fmt.Errorf("%w: %d: say which port the running proxy has", settings.ErrValue, p.Port))
	}
	return Listen{Host: p.Host, Port: p.Port, TLSCert: p.TLSCert, TLSKey: p.TLSKey}, nil
}

var errNoHome = errors.New("neither XDG_STATE_HOME nor HOME says where data can be kept; give a directory")

// stateDir is where this user's programs keep what must survive a restart.
// A relative XDG_STATE_HOME is passed over, as the XDG specification demands.
func stateDir(lookupEnv func(string) (string, bool)) (string, error) {
	if dir, _ := lookupEnv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "pdmesh"), nil
	}
	if home, _ := lookupEnv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "pdmesh"), nil
	}
	return "", errNoHome
}
