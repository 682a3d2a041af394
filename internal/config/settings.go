package config

import (
	"slices"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/settings"
)

// Settings lists every setting of the proxy in the order of --help. They fill p.
func (p *Proxy) Settings() settings.Table {
	return slices.Concat(
		p.clientSettings(),
		p.etcdSettings(),
		p.ownEtcdSettings(),
		p.membershipSettings(),
		p.accessSettings(),
		p.tlsSettings(),
		p.originSettings(),
		p.requestSettings(),
		p.handOverSettings(),
		p.healthSettings(),
		p.choiceSettings(),
		p.recordSettings(),
		settings.Reading("PD_CONFIG", &p.ConfigFile, &p.PrintConfig),
	)
}

// RegisterProxyFlags adds every setting of the proxy to fs. LoadProxy reads
// them back after fs was parsed; feed the parser NormalizeArgs(args).
func RegisterProxyFlags(fs *pflag.FlagSet) {
	new(Proxy).Settings().Register(fs)
	referenceTable().Register(fs)
}

// NormalizeArgs rewrites the forms that the reference proxies' command lines have and pflag
// does not know; see settings.Table.Normalize.
func NormalizeArgs(args []string) []string {
	return append(referenceTable(), new(Proxy).Settings()...).Normalize(args)
}
