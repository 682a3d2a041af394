package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/bench/soak"
)

// outFlags say where a report goes.
type outFlags struct{ into, machine, readme string }

func (f *outFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.into, "into", "", "directory of the reports of all machines (docs/performance): figures and pictures go to the folder of this one, README.md is written anew")
	fs.StringVar(&f.machine, "machine", "", "name of this machine's folder there (default from its processor)")
	fs.StringVar(&f.readme, "readme", "", "renew the headline between its marks in this file (README.md)")
}

// folder is where the figures and pictures of this machine go.
func (f *outFlags) folder() string { return filepath.Join(f.into, machineName(f.machine)) }

func machineName(given string) string {
	if given != "" {
		return given
	}
	return report.NameOf(machine.Describe())
}

// write writes what was asked for, and always the gates for the person who
// waits.
func (f *outFlags) write(w io.Writer, run *report.Run) error {
	fmt.Fprintf(w, "\n%s", run.Headline())
	if f.into != "" {
		if _, err := writePage(w, f.into); err != nil {
			return err
		}
	}
	return f.headline(w, &report.Measured{Name: machineName(f.machine), Run: run})
}

func (f *outFlags) headline(w io.Writer, m *report.Measured) error {
	if f.readme == "" {
		return nil
	}
	old, err := os.ReadFile(f.readme)
	if err != nil {
		return fmt.Errorf("renew the headline: %w", err)
	}
	text, ok := m.Renew(string(old))
	if !ok {
		fmt.Fprintf(w, "%s has no headline to renew (marks %s and %s)\n", f.readme, report.Begin, report.End)
		return nil
	}
	return publish(f.readme, text)
}

// writePage writes the pictures of all machines and the page that shows them.
func writePage(w io.Writer, dir string) ([]report.Measured, error) {
	all, err := report.ReadAll(dir)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if err := draw(dir, &all[i]); err != nil {
			return nil, fmt.Errorf("write the report: %w", err)
		}
	}
	page := filepath.Join(dir, "README.md")
	if err := publish(page, report.Page(all)); err != nil {
		return nil, fmt.Errorf("write the report: %w", err)
	}
	fmt.Fprintf(w, "\nreport in %s\n", page)
	return all, nil
}

func draw(dir string, m *report.Measured) error {
	for _, d := range m.Run.Drawings() {
		if err := publish(filepath.Join(dir, m.Name, d.File), d.SVG); err != nil {
			return err
		}
		m.Plots = append(m.Plots, report.Plot{File: m.Name + "/" + d.File, Title: d.Title})
	}
	// The plots of the soak belong to the report too.
	more := func(pattern, title string) {
		files, err := filepath.Glob(filepath.Join(dir, m.Name, pattern))
		if err != nil {
			return
		}
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".svg")
			m.Plots = append(m.Plots, report.Plot{File: m.Name + "/" + filepath.Base(file), Title: title + " " + name})
		}
	}
	more("soak-*.svg", soakTitle(filepath.Join(dir, m.Name, "soak.json")))
	return nil
}

// soakTitle says what came of the soak whose result that file is.
func soakTitle(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "Soak:"
	}
	var r soak.Result
	if err := json.Unmarshal(raw, &r); err != nil {
		return "Soak:"
	}
	return fmt.Sprintf("Soak of commit %s: %.0f s at %.0f streams/s (the peak was %.0f), %d right, %d wrong, cut or failed, %d left by their clients, %d changes of the membership; per minute %.1f KiB, %.2f goroutines, %.2f sockets:",
		r.Commit, r.Seconds, r.Rate, r.Peak, r.Right, r.Wrong+r.Broken+r.Failed, r.Left, r.Changes, r.RSSSlope, r.GoroutineSlope, r.SocketSlope)
}

func publish(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }

func reportCommand() *cobra.Command {
	var out outFlags
	cmd := &cobra.Command{
		Use: "report DIR", Short: "write the report of all machines again, from the figures in DIR/MACHINE/result.json", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := writePage(cmd.OutOrStdout(), args[0])
			if err != nil {
				return err
			}
			return out.headline(cmd.OutOrStdout(), &all[0])
		},
	}
	cmd.Flags().StringVar(&out.readme, "readme", "", "renew the headline between its marks in this file (README.md) by the newest figures")
	return cmd
}

// commit names what is checked out here; not known is "unknown". What is
// changed in the documentation, which the pictures that are drawn before are a
// part of, makes no other program.
func commit(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(out))
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no", "--",
		":(top)", ":(top,exclude)docs", ":(top,exclude)*.md").Output()
	if err != nil || len(changed) > 0 {
		name += "-dirty"
	}
	return name
}
