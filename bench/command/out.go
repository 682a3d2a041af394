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

	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/bench/soak"
)

// outFlags say where a report goes.
type outFlags struct{ doc, readme string }

func (f *outFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.doc, "doc", "", "write the report to this file (docs/performance.md), plots into a directory of its name beside it")
	fs.StringVar(&f.readme, "readme", "", "renew the headline between its marks in this file (README.md)")
}

// write writes what was asked for, and always the gates for the person who
// waits.
func (f *outFlags) write(w io.Writer, run *report.Run) error {
	fmt.Fprintf(w, "\n%s", run.Headline())
	if f.doc != "" {
		if err := f.writeDoc(run); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
		fmt.Fprintf(w, "\nreport in %s\n", f.doc)
	}
	if f.readme == "" {
		return nil
	}
	old, err := os.ReadFile(f.readme)
	if err != nil {
		return fmt.Errorf("renew the headline: %w", err)
	}
	text, ok := run.Renew(string(old))
	if !ok {
		fmt.Fprintf(w, "%s has no headline to renew (marks %s and %s)\n", f.readme, report.Begin, report.End)
		return nil
	}
	return publish(f.readme, text)
}

func (f *outFlags) writeDoc(run *report.Run) error {
	dir := strings.TrimSuffix(f.doc, filepath.Ext(f.doc))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var plots []report.Plot
	for _, d := range run.Drawings() {
		if err := publish(filepath.Join(dir, d.File), d.SVG); err != nil {
			return err
		}
		plots = append(plots, report.Plot{File: filepath.Base(dir) + "/" + d.File, Title: d.Title})
	}
	// What flame graphs and the soak left there belongs to the report too.
	more := func(pattern, title string) {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return
		}
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".svg")
			plots = append(plots, report.Plot{File: filepath.Base(dir) + "/" + filepath.Base(file), Title: title + " " + name})
		}
	}
	more("flame-*.svg", "Where the proxy's processor time goes:")
	more("soak-*.svg", soakTitle(filepath.Join(dir, "soak.json")))
	return publish(f.doc, run.Markdown(plots))
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
		Use: "report RESULT.json", Short: "write the report again from the figures of a run", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := report.Read(args[0])
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), run)
		},
	}
	out.register(cmd.Flags())
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
