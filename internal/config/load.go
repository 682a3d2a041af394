package config

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"

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
	table := proxySettings()
	p := Proxy{sources: make(map[string]string)}
	env := environment(table, lookupEnv)

	// Where the file is can be said by flag and environment only.
	v := viper.New()
	path := fs.Lookup("config").Value.String()
	if path == "" {
		path = env["config"].Value
	}
	if path != "" {
		file, err := readFile(path, table)
		if err != nil {
			return Proxy{}, err
		}
		for name := range file {
			p.sources[name] = "file " + path
		}
		if err := v.MergeConfigMap(file); err != nil {
			return Proxy{}, fmt.Errorf("config file %s: %w", path, err)
		}
	}
	// The environment goes in as a second layer over the file rather than
	// through viper's own look-up, which reads the process' environment only.
	over := make(map[string]any, len(env))
	for name, e := range env {
		over[name] = e.Value
		p.sources[name] = "environment " + e.Variable
	}
	if err := v.MergeConfigMap(over); err != nil {
		return Proxy{}, fmt.Errorf("environment: %w", err)
	}
	var errs []error
	for _, s := range table {
		flag := fs.Lookup(s.name)
		if flag == nil {
			return Proxy{}, fmt.Errorf("flag --%s is not registered", s.name)
		}
		if err := v.BindPFlag(s.name, flag); err != nil {
			return Proxy{}, fmt.Errorf("flag --%s: %w", s.name, err)
		}
		if flag.Changed {
			p.sources[s.name] = "flag --" + s.name
		}
		raw := v.Get(s.name)
		if text, ok := raw.(string); ok && text == "" && (s.kind == kindList && !flag.Changed) {
			continue // the default of a list is no list
		}
		if err := assign(s.field(&p), raw); err != nil {
			errs = append(errs, p.complain(s.name, "%w", err))
		}
	}
	if err := p.applyReference(fs); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return Proxy{}, errors.Join(errs...)
	}
	if err := p.complete(lookupEnv); err != nil {
		return Proxy{}, err
	}
	if err := p.Validate(); err != nil {
		return Proxy{}, err
	}
	return p, nil
}

// complain words an error about one setting and says where its value is from
// when that is not the command line. A value that came by a flag of another
// name, as those of the reference proxies have, is complained of by that name.
func (p *Proxy) complain(name, format string, args ...any) error {
	where := ""
	src := p.sources[name]
	if flag, ok := strings.CutPrefix(src, "flag --"); ok {
		name = flag
	} else if src != "" {
		where = " (from " + src + ")"
	}
	return fmt.Errorf("--%s%s: %w", name, where, fmt.Errorf(format, args...))
}

// environment collects the settings that environment variables give.
func environment(table []setting, lookup settings.Lookup) map[string]settings.Env {
	out := make(map[string]settings.Env)
	for _, s := range table {
		var names []string
		if !s.flagOnly {
			names = append(names, settings.Variable(s.name))
		}
		if e, ok := lookup.First(append(names, s.env...)...); ok {
			out[s.name] = e
		}
	}
	return out
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
		return "", fmt.Errorf("%w%s", errValue, strings.TrimPrefix(err.Error(), instance.ErrAddress.Error()))
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
