// Package diagnose implements pdctl doctor: it collects the state that this machine can observe,
// and internal/observe/doctor evaluates it.
package diagnose

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/observe/doctor"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const doctorHelp = `doctor checks the fleet and prints each problem with its cause and a remedy, if possible
as a command. It changes nothing.

It checks etcd (members, space, alarms, users, schema), every record of the membership,
the reports of the proxies, the agents of this machine that run as this user, the reasons
that other agents wrote to etcd for not being registered, and the certificates given here.
It reads the latencies of instances from the proxies that it can reach (GET /status).
With --probe it also sends GET /health to the engines, from this machine.

A proxy that seems to lag is checked twice, some seconds apart.

Severities: error (something does not work), warning (it works, but not as intended, or not
for long), note (no problem by itself).

Exit codes:
  0  no errors or warnings; there may be notes
  1  it could not check: etcd does not answer, or refuses this user. A finding says why
  5  there are errors or warnings`

// ExitFindings is the exit code of doctor if there are findings.
const ExitFindings = 5

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	probe, agents bool
	most          int
}

// Command returns the command doctor.
func Command(s *session.Session) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use: "doctor", Short: "find problems, with cause and remedy", Long: doctorHelp,
		Example: "  pdctl doctor\n  pdctl doctor --probe --timeout 3s\n  pdctl doctor -o json | jq '.findings[] | select(.severity == \"error\")'",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return examine(cmd.Context(), s, &o) },
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.probe, "probe", false, "send GET /health, and /v1/models where the record lists models, to the engines; each has --timeout, all together ten times that")
	fs.IntVar(&o.most, "probe-most", 256, "with --probe: the largest number of engines")
	fs.BoolVar(&o.agents, "agents", true, "also check the agents of this machine")
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
		return cli.Wrongf("--probe-most %d: must be 1 or more", o.most)
	}
	p, failed := gather(ctx, s, o)
	if p == nil {
		return failed
	}
	if ctx.Err() != nil { // what could not be read is no finding
		return errors.New("interrupted")
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
		return cli.Exit(fmt.Errorf("%s, %s", cli.Count(out.Counts[doctor.Error], "error"), cli.Count(out.Counts[doctor.Warning], "warning")), ExitFindings)
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
