package config

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Proxy has all settings of a proxy, in groups. A group has its fields, its part of the
// table and its checks in one file. LoadProxy fills and checks them; tests that build a Proxy
// by hand call Validate.
type Proxy struct {
	Clients
	Etcd
	EmbeddedEtcd
	Membership
	Access
	TLS
	Origins
	Requests
	KVTransfer
	Health
	Choice
	Admission
	Roles
	Records

	ConfigFile  string
	PrintConfig bool

	// Notices are warnings about the command line, one sentence each: flags that have no
	// effect, and defaults of a reference proxy.
	Notices []string

	// sources has the source of each setting that is not a default.
	sources settings.Sources
}

// Settings returns all settings of the proxy in the order of --help. They fill p.
func (p *Proxy) Settings() settings.Table {
	return slices.Concat(
		p.Clients.settings(),
		p.Etcd.settings(),
		p.EmbeddedEtcd.settings(),
		p.Membership.settings(),
		p.Access.settings(),
		p.TLS.settings(),
		p.Origins.settings(),
		p.Requests.settings(),
		p.KVTransfer.settings(),
		p.Health.settings(),
		p.Choice.settings(),
		p.Admission.settings(),
		p.Roles.settings(),
		p.Records.settings(),
		settings.Reading("PD_CONFIG", &p.ConfigFile, &p.PrintConfig),
	)
}

// RegisterProxyFlags adds every setting of the proxy to fs. LoadProxy reads them after fs has
// parsed NormalizeArgs(args).
func RegisterProxyFlags(fs *pflag.FlagSet) {
	new(Proxy).Settings().Register(fs)
	referenceTable().Register(fs)
}

// NormalizeArgs rewrites forms of the reference proxies' command lines that pflag does not accept; see
// settings.Table.Normalize.
func NormalizeArgs(args []string) []string {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return args // a shell completes an unfinished command line
	}
	return append(referenceTable(), new(Proxy).Settings()...).Normalize(args)
}

// complete brings addresses into canonical form and sets the settings that follow from others.
func (p *Proxy) complete(lookupEnv func(string) (string, bool)) error {
	c := &complaints{sources: p.sources}
	p.Clients.complete(c)
	p.Etcd.complete(c)
	if p.Embedded() {
		p.EmbeddedEtcd.complete(c, lookupEnv)
	}
	p.Membership.complete(c, p.Port, lookupEnv)
	p.Choice.complete()
	if p.InstanceAllow == nil && p.EtcdIsLoopback() {
		if notice := p.Access.allowDefault(slices.Concat(p.Prefill, p.Decode)); notice != "" {
			p.Notices = append(p.Notices, notice)
		}
	}
	return c.err()
}

// Validate checks the settings without network or disk. The error has a line for each
// invalid setting, which names its flag.
func (p *Proxy) Validate() error {
	c := &complaints{sources: p.sources, errs: []error{p.Settings().Check(p.sources)}}
	p.Clients.check(c, &p.Access)
	p.Etcd.check(c)
	p.EmbeddedEtcd.check(c, &p.Etcd)
	p.Membership.check(c)
	p.Access.check(c, &p.Clients, &p.Etcd)
	p.TLS.check(c)
	p.Origins.check(c)
	p.Requests.check(c)
	p.KVTransfer.check(c)
	p.Choice.check(c)
	p.Records.check(c)
	return c.err()
}

// EtcdIsLoopback reports whether etcd listens on loopback only.
func (p *Proxy) EtcdIsLoopback() bool {
	if p.Embedded() {
		return instance.IsLoopback(p.EtcdListen)
	}
	return instance.AllLoopback(p.EtcdEndpoints)
}
