package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/etcdaccess"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/internal/settings"
)

// LoadProxy builds the configuration of a proxy. fs must hold the flags of
// RegisterProxyFlags and be parsed; lookupEnv is os.LookupEnv or stands for
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

// complain words an error about one setting.
func (p *Proxy) complain(name, format string, args ...any) error {
	return p.sources.Complain(name, fmt.Errorf(format, args...))
}

// Print writes the configuration as a YAML file that --config takes. What is for the
// proxy's own etcd is left open where there is another one.
func (p *Proxy) Print(w io.Writer) error {
	own := p.ownEtcdSettings()
	return p.Settings().Print(w, func(s settings.Setting) (any, string) {
		if _, ok := own.Find(s.Name); ok && !p.Embedded() && p.sources[s.Name] == "" {
			return nil, ""
		}
		if s.Name == "etcd-endpoints" && !p.Embedded() {
			return etcdaccess.Written(p.EtcdEndpoints, p.EtcdHTTPS), p.sources[s.Name]
		}
		return s.Into, p.sources[s.Name]
	})
}

// complete brings addresses into their canonical spelling and fills what
// follows from other settings.
func (p *Proxy) complete(lookupEnv func(string) (string, bool)) error {
	var errs []error
	canonical := func(name string, list *[]string, parse func(string) (string, error)) {
		seen := make(map[string]bool, len(*list))
		out := (*list)[:0:0]
		for _, item := range *list {
			address, err := parse(item)
			if err != nil {
				errs = append(errs, p.complain(name, "%w", err))
				continue
			}
			if !seen[address] {
				seen[address] = true
				out = append(out, address)
			}
		}
		*list = out
	}
	canonical("prefill", &p.Prefill, instance.ParseAddress)
	canonical("decode", &p.Decode, instance.ParseAddress)
	endpoints, https, err := etcdaccess.ParseEndpoints(p.EtcdEndpoints)
	if err != nil {
		errs = append(errs, p.complain("etcd-endpoints", "%w", err))
	}
	p.EtcdEndpoints, p.EtcdHTTPS = endpoints, https
	if p.EtcdPasswordFile != "" && p.EtcdPassword == "" {
		if p.EtcdPassword, err = etcdaccess.ReadPassword(p.EtcdPasswordFile); err != nil {
			errs = append(errs, p.complain("etcd-password-file", "%w", err))
		}
		p.sources["etcd-password"] = "file " + p.EtcdPasswordFile
	}

	p.PrefillPolicy = cmp.Or(p.PrefillPolicy, p.Policy, policy.DefaultPrefill)
	p.DecodePolicy = cmp.Or(p.DecodePolicy, p.Policy, policy.Default)
	p.EtcdPrefix = strings.TrimRight(p.EtcdPrefix, "/")
	if p.Embedded() {
		if address, err := instance.ParseAddress(p.EtcdListen); err == nil {
			p.EtcdListen = address // if not, Validate says so
		}
		if p.EtcdDataDir == "" {
			dir, err := stateDir(lookupEnv)
			if err != nil {
				errs = append(errs, p.complain("etcd-data-dir", "%w", err))
			} else {
				p.EtcdDataDir = filepath.Join(dir, "etcd-"+p.EtcdListen[strings.LastIndexByte(p.EtcdListen, ':')+1:])
			}
		}
	}
	// Nothing depends on it, so a user without a home goes without; proxies on
	// any free port would share one directory.
	if p.sources["state-dir"] == "" && p.Port != 0 {
		if dir, err := stateDir(lookupEnv); err == nil {
			p.StateDir = filepath.Join(dir, "proxy-"+strconv.Itoa(p.Port))
		}
	}
	if p.InstanceAllow == nil && p.EtcdIsLoopback() {
		p.InstanceAllow = p.defaultAllow()
		p.noticeNames()
	}
	return errors.Join(errs...)
}

// etcdAddress is ParseAddress with errors that do not speak of instances.
func etcdAddress(s string) (string, error) {
	address, err := instance.ParseAddress(s)
	if err != nil {
		return "", fmt.Errorf("%w%s", settings.ErrValue, strings.TrimPrefix(err.Error(), instance.ErrAddress.Error()))
	}
	return address, nil
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
