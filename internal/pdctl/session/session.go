// Package session is what all commands of pdctl share: the settings and the output of one
// run, the connection to etcd, and how arguments name instances. Commands import it; it
// knows none of them.
package session

import (
	"io"
	"os/user"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/pdctl/dryrun"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/settings"
)

// Session is one run of pdctl.
type Session struct {
	Out       output.Printer
	Etcd      Etcd // how etcd is reached
	LookupEnv settings.Lookup
	Timeout   time.Duration
	Selectors []string   // --selector
	Dry       dryrun.Run // --dry-run, of commands that write, and what it has kept from etcd
}

// New makes a session whose flags are not read yet.
func New(stdout, stderr io.Writer, lookupEnv func(string) (string, bool)) *Session {
	return &Session{Out: output.Printer{Stdout: stdout, Stderr: stderr}, LookupEnv: lookupEnv}
}

// Register gives the root command the flags that all commands have.
func (s *Session) Register(fs *pflag.FlagSet) {
	s.Etcd.register(fs)
	fs.DurationVar(&s.Timeout, "timeout", 2*time.Second, "how long to try to reach etcd (at least 2s), and limit of each call to an engine")
	fs.StringVarP(&s.Out.Format, "output", "o", output.Table, "table, wide (table with more columns), json or yaml")
}

// Wrap has a command check the flags of the root command first, and say at the end what a
// dry run would have written.
func (s *Session) Wrap(do func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := s.settle(cmd); err != nil {
			return cli.Wrong(err)
		}
		err := do(cmd, args)
		if cli.IsWrong(err) {
			return err
		}
		if seenByProxies := s.printDry(); err == nil {
			err = seenByProxies
		}
		return err
	}
}

// settle fills flags that were not given from the environment and checks them.
func (s *Session) settle(cmd *cobra.Command) error {
	fs := cmd.Flags()
	for _, name := range []string{"etcd-endpoints", "etcd-prefix", "etcd-username", "etcd-password", "etcd-password-file", "etcd-ca", "etcd-cert", "etcd-key",
		"engine-api-key", "engine-ca", "engine-cert", "engine-key", "engine-server-name"} {
		f := fs.Lookup(name)
		if f == nil || f.Changed {
			continue
		}
		variables := []string{settings.Variable(name)}
		if name == "engine-api-key" {
			variables = append(variables, "OPENAI_API_KEY")
		}
		if e, ok := s.LookupEnv.First(variables...); ok {
			if err := f.Value.Set(e.Value); err != nil {
				return cli.Wrongf("%s: %w", e.Variable, err)
			}
		}
	}
	if err := s.Out.Check(); err != nil {
		return err
	}
	if s.Timeout <= 0 {
		return cli.Wrongf("--timeout %s: must be more than zero", s.Timeout)
	}
	return s.Etcd.settle()
}

// Writes gives a command that writes the flag --dry-run.
func (s *Session) Writes(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&s.Dry.On, "dry-run", false, "print what would be written, compared with etcd as it is, and write nothing")
	return cmd
}

// printDry says what would have been written.
func (s *Session) printDry() error {
	if !s.Dry.On || s.Out.Structured() {
		return nil
	}
	return s.Out.Println(s.Dry.Text())
}

// actor is who changes something, for the audit trail.
func actor() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return "pdctl:" + name
}
