package show

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const watchHelp = `watch prints changes as they happen, until Ctrl-C.

  2026-11-21T09:00:00Z  17  ~  prefill/10.0.0.7:8100  down  state ready -> down

Columns: time (UTC), etcd revision, kind of change, instance, its current state, view or
intent, and what changed. Kinds: "+" new, "-" left, "~" changed, "=" present at the start
(with --initial). -o json prints one object on each line, -o yaml one document for each.

With --selector, an instance that begins to match is "+", and one that stops matching is
"-".

watch continues when etcd restarts. While etcd is unavailable it reports that on stderr, and
afterwards prints what has changed.`

// statusPoll is the interval at which the contact to etcd is checked.
const statusPoll = time.Second

// Watch returns the command watch.
func Watch(s *session.Session) *cobra.Command {
	var initial bool
	cmd := &cobra.Command{
		Use: "watch", Short: "print changes as they happen", Long: watchHelp,
		Example: "  pdctl watch\n  pdctl watch --initial -o json | jq -c 'select(.status == \"down\")'",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return follow(cmd.Context(), s, initial) },
	}
	cmd.Flags().BoolVar(&initial, "initial", false, "first print all instances")
	return cmd
}

// follow prints changes until ctx ends. It fails if etcd does not answer at the start, so that a
// wrong address is reported; later outages do not end it.
func follow(ctx context.Context, s *session.Session, initial bool) error {
	conn, err := s.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	log := logrus.New()
	log.SetOutput(io.Discard)
	// Without a Prober the watcher only reads: it verifies and promotes nothing.
	w := watch.New(conn.Client, watch.Options{Layout: conn.Layout, Log: log})
	defer background.Start(ctx, w.Run)()

	select {
	case <-w.Ready():
	case <-ctx.Done():
		return nil
	}
	prev := w.Snapshot()
	if initial {
		for _, in := range s.Selector.Filter(prev).All() {
			if err := printChange(s, change{kind: "=", revision: in.ModRevision, in: in}); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(s.Out.Stderr, "Watching %d instances from revision %d.\n", len(s.Selector.Filter(prev).All()), prev.Revision)
	tick := time.NewTicker(statusPoll)
	defer tick.Stop()
	away := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			away = printContact(s, w.Status(), away)
		case <-prev.Changed():
			next := w.Snapshot()
			for _, c := range diff(s.Selector.Filter(prev), s.Selector.Filter(next)) {
				if err := printChange(s, c); err != nil {
					return err
				}
			}
			prev = next
		}
	}
}

// printContact prints when the contact to etcd is lost and when it is restored.
func printContact(s *session.Session, st watch.Status, away bool) bool {
	now := st.State == watch.Suspect || st.State == watch.Stale
	switch {
	case now && !away:
		fmt.Fprintf(s.Out.Stderr, "etcd is unavailable (%s); waiting for it.\n", instance.Printable(st.LastError, 300))
	case !now && away:
		fmt.Fprintf(s.Out.Stderr, "etcd is back, at revision %d.\n", st.Revision)
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

func printChange(s *session.Session, c change) error {
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	if s.Out.Structured() {
		words := map[string]string{"+": "added", "-": "removed", "~": "changed", "=": "present"}
		return s.Out.WriteLine(changeJSON{Time: now, Change: words[c.kind], Revision: c.revision, What: c.what, Listing: c.in.List()})
	}
	what := strings.Join(c.what, "; ")
	if c.kind != "~" {
		l := &listed{Listing: c.in.List()}
		what = strings.TrimSpace(kind(l) + " " + output.ShortModels(l.Models))
	}
	state := c.in.Status()
	if c.kind == "-" {
		state = "gone"
	}
	return s.Out.Println(fmt.Sprintf("%s  %d  %s  %s/%s  %s  %s", now, c.revision, c.kind,
		c.in.Role, instance.Printable(c.in.Address, 0), state, what))
}
