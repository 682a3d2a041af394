package config

import "github.com/spf13/pflag"

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
func LoadListen(fs *pflag.FlagSet, lookupEnv func(string) (string, bool)) (l Listen, err error) {
	p := Proxy{sources: make(map[string]string)}
	table := proxySettings()
	env := environment(table, lookupEnv)
	path := fs.Lookup("config").Value.String()
	if path == "" {
		path = env["config"].Value
	}
	file := map[string]any{}
	if path != "" {
		if file, err = readFile(path, table); err != nil {
			return Listen{}, err
		}
	}
	for _, s := range table {
		switch s.name {
		case "host", "port", "tls-cert", "tls-key":
		default:
			continue
		}
		flag := fs.Lookup(s.name)
		raw := any(flag.Value.String())
		switch e, inEnv := env[s.name]; {
		case flag.Changed:
			p.sources[s.name] = "flag --" + s.name
		case inEnv:
			raw, p.sources[s.name] = e.Value, "environment "+e.Variable
		case file[s.name] != nil:
			raw, p.sources[s.name] = file[s.name], "file "+path
		}
		if err := assign(s.field(&p), raw); err != nil {
			return Listen{}, p.complain(s.name, "%w", err)
		}
	}
	if p.Port < 1 || p.Port > 65535 {
		return Listen{}, p.complain("port", "%w: %d: say which port the running proxy has", errValue, p.Port)
	}
	return Listen{Host: p.Host, Port: p.Port, TLSCert: p.TLSCert, TLSKey: p.TLSKey}, nil
}
