package config

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// LoadProxy returns the configuration of a proxy. fs must have the flags of
// RegisterProxyFlags and be parsed; lookupEnv is os.LookupEnv or a replacement. An empty
// environment variable counts as not set. The error has a line for each invalid setting.
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

// Print writes the configuration as a YAML file for --config. The settings of the embedded etcd have no
// value if another etcd is used, and its gateway has none with TLS.
func (p *Proxy) Print(w io.Writer) error {
	own := p.EmbeddedEtcd.settings()
	var remarks []string
	if len(p.DecodePorts) > 0 {
		remarks = append(remarks, "a file cannot have the LMCache ports of decode instances: start with the command line that has them, or register the instances with agents")
	}
	return p.Settings().Print(w, func(s settings.Setting) (any, string) {
		if _, ok := own.Find(s.Name); ok && !p.Embedded() && p.sources[s.Name] == "" {
			return nil, ""
		}
		if s.Name == "etcd-gateway" && !p.EmbeddedEtcdFiles.None() && p.sources[s.Name] == "" {
			return nil, ""
		}
		if s.Name == "etcd-endpoints" && !p.Embedded() {
			return access.Written(p.EtcdEndpoints, p.EtcdTLS.On), p.sources[s.Name]
		}
		return s.Into, p.sources[s.Name]
	}, remarks...)
}

// Listen is the address of the listener for clients and its TLS files.
type Listen struct {
	Host  string
	Port  int
	Files certs.Files // none: plain HTTP
}

// listenSettings returns the settings that LoadListen reads.
func listenSettings() []string { return []string{"host", "port", "tls-cert", "tls-key"} }

// RegisterListenFlags adds the same flags as RegisterProxyFlags, and hides those that
// LoadListen does not read.
func RegisterListenFlags(fs *pflag.FlagSet) {
	RegisterProxyFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) { f.Hidden = f.Name != "config" && !slices.Contains(listenSettings(), f.Name) })
}

// LoadListen returns the listener of the proxy with these flags, environment and file. It ignores all
// other settings, so that a health check does not need them. The parameters are those of LoadProxy.
func LoadListen(fs *pflag.FlagSet, lookupEnv func(string) (string, bool)) (Listen, error) {
	var p Proxy
	v, err := p.Settings().Load(fs, lookupEnv, "")
	if err != nil {
		return Listen{}, err
	}
	p.sources = v.Sources
	if err := v.Fill(listenSettings()...); err != nil {
		return Listen{}, err
	}
	if p.Port < 1 || p.Port > 65535 {
		return Listen{}, p.sources.Complain("port", fmt.Errorf("%w: %d: must be the port of the running proxy", settings.ErrValue, p.Port))
	}
	return Listen{p.Host, p.Port, p.ListenerFiles}, nil
}

// stateDir returns the directory of this user for data that survives a restart. A relative
// XDG_STATE_HOME is ignored, as the XDG specification requires.
func stateDir(lookupEnv func(string) (string, bool)) (string, error) {
	if dir, _ := lookupEnv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "pdmesh"), nil
	}
	if home, _ := lookupEnv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "pdmesh"), nil
	}
	return "", errors.New("neither XDG_STATE_HOME nor HOME says where data can be stored; set a directory")
}

// Admission has the settings of the queue in front of the engines.
type Admission struct {
	Queue       string        // an admission.Mode
	QueueLength int           // requests that may wait for one model
	TPOTTarget  time.Duration // time between two tokens of a stream; 0 = none
}

func (q *Admission) settings() settings.Table {
	return settings.About("Queue",
		settings.Setting{Name: "queue", Kind: settings.Text, Takes: string(admission.Off + ", " + admission.Observe + " or " + admission.On), Default: string(admission.Observe), Usage: "keep requests in the proxy while the engines have enough to do, in the order of their priority: off, observe (only count what on would do) or on", Into: &q.Queue},
		settings.Setting{Name: "queue-length", Kind: settings.Number, Takes: "1 to 100000", Default: "5000", Rare: true, Usage: "number of requests that may wait for one model in this proxy; beyond it the newest of the lowest class, of its key with the most, gets 429", Into: &q.QueueLength},
		settings.Setting{Name: "tpot-target", Kind: settings.Time, Takes: "1ms to 10s, or 0 for none", Default: "50ms", Usage: "time per output token up to which decode instances get more streams, as predicted from earlier streams; each may always have 8 streams; 0 means no limit, otherwise 1ms to 10s", Into: &q.TPOTTarget},
	)
}
