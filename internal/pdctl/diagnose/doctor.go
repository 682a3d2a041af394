// Package diagnose is pdctl doctor: it gathers what can be seen from here, internal/doctor
// judges it.
package diagnose

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/doctor"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const doctorHelp = `doctor looks at everything that can be seen from here. It prints what is wrong, why, and
what helps, with commands to paste where there are any. It changes nothing.

It looks at etcd (members, space, alarms, users, schema), at every entry of the
membership, at what the proxies report about themselves and the fleet, at the agents of
this machine that run as this user, at other agents that have written to etcd why they are
not registered, and at the certificates given here. With --probe it also
asks the engines for /health, from this machine.

A proxy that seems to lag is looked at twice, some seconds apart.

Severities: error, something does not work; warning, it works, but not as it should or not
for long; note, nothing is wrong by itself.

Exit codes:
  0  nothing is wrong; there may be notes
  1  it could not look: etcd does not answer, or refuses this user. A finding says why
  5  there are errors or warnings`

// exitFindings is the exit code of doctor when it has found something.
const exitFindings = 5

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	probe, agents bool
	most          int
}

// Command makes the command doctor.
func Command(s *session.Session) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use: "doctor", Short: "say what is wrong, why, and what helps", Long: doctorHelp,
		Example: "  pdctl doctor\n  pdctl doctor --probe --timeout 3s\n  pdctl doctor -o json | jq '.findings[] | select(.severity == \"error\")'",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return examine(cmd.Context(), s, &o) },
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.probe, "probe", false, "ask engines for /health from here, and those that list models for them; each has --timeout, all together ten times that")
	fs.IntVar(&o.most, "probe-most", 256, "with --probe: how many engines at most")
	fs.BoolVar(&o.agents, "agents", true, "ask the agents of this machine, too")
	s.Engines.Register(fs)
	return cmd
}

// diagnosis is the JSON form of doctor.
type diagnosis struct {
	Findings []doctor.Finding        `json:"findings"`
	Counts   map[doctor.Severity]int `json:"counts"`
}

func examine(ctx context.Context, s *session.Session, o *doctorOptions) error {
	if o.most <= 0 {
		return cli.Wrongf("--probe-most %d: give 1 or more", o.most)
	}
	p, failed := gather(ctx, s, o)
	if p == nil {
		return failed
	}
	out := diagnosis{Findings: p.Examine(), Counts: map[doctor.Severity]int{doctor.Error: 0, doctor.Warning: 0, doctor.Note: 0}}
	for i := range out.Findings {
		out.Counts[out.Findings[i].Severity]++
	}
	if s.Out.Structured() {
		if err := s.Out.Write(out); err != nil {
			return err
		}
	} else if err := printFindings(s, &out); err != nil {
		return err
	}
	switch {
	case failed != nil:
		return failed
	case doctor.Wrong(out.Findings):
		return cli.Exit(fmt.Errorf("%d errors, %d warnings", out.Counts[doctor.Error], out.Counts[doctor.Warning]), exitFindings)
	}
	return nil
}

func printFindings(s *session.Session, d *diagnosis) error {
	var b strings.Builder
	for i := range d.Findings {
		f := &d.Findings[i]
		fmt.Fprintf(&b, "%s  %s: %s (%s)\n  why   %s\n  cure  %s\n", f.Severity, f.Subject, f.What, f.Check, f.Why, f.Cure)
		for _, c := range f.Commands {
			fmt.Fprintf(&b, "        $ %s\n", c)
		}
		b.WriteByte('\n')
	}
	if !doctor.Wrong(d.Findings) {
		b.WriteString("Nothing is wrong.\n")
	}
	return s.Out.Println(strings.TrimSuffix(b.String(), "\n"))
}
