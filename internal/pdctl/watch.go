package pdctl

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
)

const watchHelp = `watch prints changes as they happen, until Ctrl-C.

  2026-11-21T09:00:00Z  17  ~  prefill/10.0.0.7:8100  down  state ready -> down

Columns: time here, revision of etcd, "+" new, "-" gone, "~" changed, "=" there
at the start (with --initial), instance, what it is worth now, what changed.
-o json prints one object a line, -o yaml one document each.

With --selector, what begins to fit is new, and what fits no more is gone.

It outlives restarts of etcd: while etcd is away it says so on the error output,
and afterwards prints what changed meanwhile.`

// statusPoll is how often watch looks whether it still hears from etcd.
const statusPoll = time.Second

func (a *app) watchCommand() *cobra.Command {
	var initial bool
	cmd := &cobra.Command{
		Use: "watch", Short: "print changes as they happen", Long: watchHelp,
		Example: "  pdctl watch\n  pdctl watch --initial -o json | jq -c 'select(.state == \"down\")'",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.watch(cmd.Context(), initial) },
	}
	cmd.Flags().BoolVar(&initial, "initial", false, "print what is there first")
	return cmd
}

// watch needs etcd to answer at the start, so that a wrong address is noticed;
// from then on it only ends with ctx.
func (a *app) watch(ctx context.Context, initial bool) error {
	sel, err := a.selected()
	if err != nil {
		return err
	}
	s, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	log := logrus.New()
	log.SetOutput(io.Discard)
	// Without a Prober the watcher only reads: it verifies and promotes nothing.
	w := watch.New(s.cli, watch.Options{Layout: s.layout, Log: log})
	wctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(wctx) // nil: only its context ends it
	}()
	defer func() {
		cancel()
		<-done
	}()

	select {
	case <-w.Ready():
	case <-ctx.Done():
		return nil
	}
	prev := w.Snapshot()
	if initial {
		for _, in := range sel.filter(prev).All() {
			if err := a.printChange(change{kind: "=", revision: in.ModRevision, in: in}); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(a.stderr, "Watching %d instances from revision %d.\n", len(sel.filter(prev).All()), prev.Revision)
	tick := time.NewTicker(statusPoll)
	defer tick.Stop()
	away := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			away = a.printContact(w.Status(), away)
		case <-prev.Changed():
			next := w.Snapshot()
			for _, c := range diff(sel.filter(prev), sel.filter(next)) {
				if err := a.printChange(c); err != nil {
					return err
				}
			}
			prev = next
		}
	}
}

// printContact tells when etcd went away and when it is back.
func (a *app) printContact(st watch.Status, away bool) bool {
	now := st.State == watch.Suspect || st.State == watch.Stale
	switch {
	case now && !away:
		fmt.Fprintf(a.stderr, "etcd is away (%s); waiting for it.\n", instance.Printable(st.LastError, 300))
	case !now && away:
		fmt.Fprintf(a.stderr, "etcd is back, at revision %d.\n", st.Revision)
	}
	return now
}

// changeJSON is one line of watch -o json.
type changeJSON struct {
	Time     string   `json:"time"`
	Change   string   `json:"change"` // added, removed, changed, present
	Revision int64    `json:"at_revision"`
	What     []string `json:"what,omitempty"`
	instance.Listing
}

func (a *app) printChange(c change) error {
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	if a.structured() {
		words := map[string]string{"+": "added", "-": "removed", "~": "changed", "=": "present"}
		return a.writeLine(changeJSON{Time: now, Change: words[c.kind], Revision: c.revision, What: c.what, Listing: c.in.List()})
	}
	what := strings.Join(c.what, "; ")
	if c.kind != "~" {
		what = strings.TrimSpace(kind(c.in) + " " + shortModels(c.in.List().Models))
	}
	state := effective(c.in)
	if c.kind == "-" {
		state = "gone"
	}
	return a.println(fmt.Sprintf("%s  %d  %s  %s/%s  %s  %s", now, c.revision, c.kind,
		c.in.Role, instance.Printable(c.in.Address, 0), state, what))
}

func (a *app) println(line string) error {
	if _, err := fmt.Fprintln(a.stdout, line); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
