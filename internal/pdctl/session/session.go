// Package session has the parts that all commands of pdctl share: the settings and the output of
// one run, the connection to etcd, and the parsing of arguments. Commands import it; it imports
// none of them.
package session

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/user"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/dryrun"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Session is one run of pdctl.
type Session struct {
	Out       output.Printer
	Etcd      Etcd // settings for the connection to etcd
	LookupEnv settings.Lookup
	Engines   Engines // settings for requests to engines
	Proxies   Proxies // settings for requests to proxies
	Timeout   time.Duration
	Proxy     string            // --proxy of commands that can read the fleet from a proxy
	Selector  instance.Selector // --selector of commands that list or select instances
	Reason    string            // --reason of commands that write, for the audit log
	Dry       dryrun.Run        // --dry-run of commands that write, and the recorded writes

	values    *settings.Values
	file      string   // --config
	prints    bool     // --print-config
	yes       bool     // --yes of commands that confirm
	again     bool     // --watch of lists
	selectors []string // Selector as on the command line
	// canProxy is true while a command with the flag --proxy of ReadsProxy runs.
	canProxy bool
}

// New returns a session whose flags are not parsed yet.
func New(stdout, stderr io.Writer, lookupEnv func(string) (string, bool)) *Session {
	return &Session{Out: output.Printer{Stdout: stdout, Stderr: stderr}, LookupEnv: lookupEnv}
}

// Settings returns the settings that a file may have. They set fields of s; --output and the
// flags of single commands can be set only on the command line.
func (s *Session) Settings() settings.Table {
	return slices.Concat(s.general(), s.Engines.settings(), s.reading())
}

func (s *Session) general() settings.Table {
	return slices.Concat(s.Etcd.settings(), settings.About("etcd",
		settings.Setting{Name: "timeout", Kind: settings.Time, Default: "2s", Usage: "how long to try to reach etcd (at least 2s), and time limit of each call to an engine", Into: &s.Timeout},
	), s.Proxies.settings())
}

// envConfig is the variable with the path of pdctl's file. It is not the variable of the proxy,
// which has other settings.
const envConfig = "PD_PDCTL_CONFIG"

func (s *Session) reading() settings.Table {
	return settings.Reading(envConfig, &s.file, &s.prints)
}

// Register adds the flags of all commands to the root command.
func (s *Session) Register(fs *pflag.FlagSet) {
	append(s.general(), s.reading()...).Register(fs)
	fs.StringVarP(&s.Out.Format, "output", "o", output.Table, "table, wide (table with more columns), json, yaml or name (role/host:port, for commands that print instances)")
}

// Wrap makes a command check the settings first, and print the recorded writes of a dry run at the
// end. With --print-config the command only prints the settings.
func (s *Session) Wrap(do func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := s.settle(cmd); err != nil {
			return cli.Wrong(err)
		}
		if s.prints {
			return s.printSettings()
		}
		if s.Out.Format == output.Name && cmd.Annotations[names] == "" {
			return cli.Wrongf("-o name: %s does not have this format", cmd.CommandPath())
		}
		var err error
		if s.Selector, err = s.parseSelectors(); err != nil {
			return err
		}
		s.canProxy = cmd.Annotations[readsProxy] != ""
		err = s.repeat(cmd, args, do)
		if cli.IsWrong(err) {
			return err
		}
		if err != nil && len(s.Dry.Planned()) == 0 {
			return err // without "nothing would be written"
		}
		return cmp.Or(err, s.printDry(), s.Out.Err())
	}
}

// settle reads the settings and checks them.
func (s *Session) settle(cmd *cobra.Command) (err error) {
	if s.values, err = s.Settings().Load(cmd.Flags(), s.LookupEnv, settings.OwnFile("pdctl", s.LookupEnv)); err != nil {
		return err
	}
	if err := s.values.Fill(); err != nil {
		return err
	}
	if err := s.Out.Check(); err != nil {
		return err
	}
	if s.Timeout <= 0 {
		return s.values.Sources.Complain("timeout", fmt.Errorf("%s: must be more than zero", s.Timeout))
	}
	return s.Etcd.settle(s.values.Sources)
}

// printSettings writes the active settings as a file for --config.
func (s *Session) printSettings() error {
	return s.Settings().Print(s.Out.Stdout, func(one settings.Setting) (any, string) {
		if one.Name == "etcd-endpoints" {
			return access.Written(s.Etcd.Endpoints, s.Etcd.TLS.On), s.values.Sources[one.Name]
		}
		return s.values.Raw(one.Name), s.values.Sources[one.Name]
	})
}

// Writes adds the flag --dry-run to a command that writes.
func (s *Session) Writes(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&s.Dry.On, "dry-run", false, "compare with etcd, print what would be written, and write nothing")
	return cmd
}

// Audits adds the flag --reason to a command that writes.
func (s *Session) Audits(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&s.Reason, "reason", "", "reason, for the audit log")
	return cmd
}

// printDry prints the recorded writes of a dry run.
func (s *Session) printDry() error {
	if !s.Dry.On || s.Out.Structured() || s.Out.Format == output.Name {
		return nil
	}
	return s.Out.Println(s.Dry.Text())
}

// Actor returns the name of the user for the audit trail.
func Actor() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return "pdctl:" + name
}

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

// Etcd holds the settings for the connection to etcd.
type Etcd struct {
	Endpoints    []string
	Prefix       string
	Username     string
	PasswordFile string
	TLS          access.TLS
	Layout       schema.Layout // of the keys below Prefix

	password string
}

func (e *Etcd) settings() settings.Table {
	return settings.About("etcd",
		settings.Setting{Name: "etcd-endpoints", Kind: settings.List, Default: "127.0.0.1:2379", Usage: "host:port of each etcd member, separated by commas, with https:// in front for TLS", Into: &e.Endpoints},
		settings.Setting{Name: "etcd-prefix", Kind: settings.Text, Default: "/pd", Usage: "root of all keys in etcd", Into: &e.Prefix},
		settings.Setting{Name: "etcd-username", Kind: settings.Text, Usage: "etcd user", Into: &e.Username},
		settings.Setting{Name: "etcd-password", Kind: settings.Text, Secret: true, Usage: "password of that user; better set PD_ETCD_PASSWORD", Into: &e.password},
		settings.Setting{Name: "etcd-password-file", Kind: settings.Text, Usage: "file whose first line is that password", Into: &e.PasswordFile},
		settings.Setting{Name: "etcd-ca", Kind: settings.Text, Usage: "PEM file of the CAs of etcd's certificate; turns TLS on (default: the system's CAs)", Into: &e.TLS.Files.CA},
		settings.Setting{Name: "etcd-cert", Kind: settings.Text, Usage: "PEM file of the client certificate for etcd", Into: &e.TLS.Files.Cert},
		settings.Setting{Name: "etcd-key", Kind: settings.Text, Usage: "PEM file of the key of --etcd-cert", Into: &e.TLS.Files.Key},
	)
}

// settle checks these settings and reads the password.
func (e *Etcd) settle(from settings.Sources) error {
	if (e.TLS.Files.Cert == "") != (e.TLS.Files.Key == "") {
		return errors.New("set --etcd-cert and --etcd-key together")
	}
	var err error
	if e.password, err = access.Password(e.password, e.PasswordFile); err != nil {
		return from.Complain("etcd-password-file", err)
	}
	if (e.password == "") != (e.Username == "") {
		return errors.New("set --etcd-username and --etcd-password (or PD_ETCD_PASSWORD) together")
	}
	out, https, err := access.ParseEndpoints(e.Endpoints)
	switch {
	case err != nil:
		return from.Complain("etcd-endpoints", err)
	case len(out) == 0:
		return from.Complain("etcd-endpoints", errors.New("is empty: set host:port, e.g. 127.0.0.1:2379"))
	}
	e.Endpoints, e.TLS.On = out, https
	if e.Layout, err = schema.NewLayout(e.Prefix); err != nil {
		return from.Complain("etcd-prefix", err)
	}
	return nil
}

// Local reports whether every endpoint is on this machine's loopback.
func (e *Etcd) Local() bool { return instance.AllLoopback(e.Endpoints) }
