package intent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/discovery/drainproof"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const waitHelp = `wait returns when every running proxy has applied a revision. From then on all of them
use the membership of that revision, or a later one.

drain, cordon, weight and the admin routes of a proxy answer with the revision of their
change ("revision" of -o json); status shows the newest one. If a proxy vanishes
meanwhile, wait does not wait for it, and names it on stderr.

Exit codes: 0 all have applied it; 4 --timeout has passed, and the others are named.`

// Exit codes other than 0, 1 and 2.
const (
	exitVanished = 3 // a proxy disappeared before it had confirmed that an instance is free
	exitTimeout  = 4 // --timeout of a wait has passed
)

// waitPoll is the shortest interval between two readings of a wait.
const waitPoll = 200 * time.Millisecond

// Wait returns the command wait.
func Wait(s *session.Session) *cobra.Command {
	var revision int64
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "wait --revision N", Short: "wait until every proxy has applied a revision", Long: waitHelp,
		Example: "  pdctl wait --revision 4711\n  pdctl wait --revision $(pdctl status -o json | jq .revision) --timeout 30s",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case revision <= 0:
				return cli.Wrongf("--revision is missing: set it to the revision of a change, from drain -o json")
			case limit <= 0:
				return cli.Wrongf("--timeout %s: must be more than zero", limit)
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error { return waitApplied(cmd.Context(), s, conn, revision, limit) })
		},
	}
	cmd.Flags().Int64Var(&revision, "revision", 0, "revision that every proxy must have applied")
	settings.DurationVar(cmd.Flags(), &limit, "timeout", waitLimit, "how long to wait")
	return cmd
}

func waitApplied(ctx context.Context, s *session.Session, conn *session.Conn, revision int64, limit time.Duration) error {
	at, err := etcd.Ping(ctx, conn.Client, conn.Layout)
	switch {
	case err != nil:
		return s.Hint(err)
	case at < revision:
		return fmt.Errorf("there is no revision %d yet: etcd is at %d", revision, at)
	}
	state, err := awaitProxies(ctx, s, conn, revision, nil, limit)
	switch {
	case errors.Is(err, errTimeout):
		return cli.Exit(fmt.Errorf("after %s not every proxy has applied revision %d: %s", limit, revision, strings.Join(state.Open, "; ")), exitTimeout)
	case err != nil:
		return err
	}
	if len(state.Vanished) > 0 {
		fmt.Fprintf(s.Out.Stderr, "Note: pdctl did not wait for these proxies, which vanished meanwhile: %s\n", strings.Join(state.Vanished, ", "))
	}
	if s.Out.Structured() {
		return s.Out.Write(map[string]any{"revision": revision, "proxies": state.Done})
	}
	fmt.Fprintf(s.Out.Stdout, "revision %d: applied by %s\n", revision, output.Proxies(state.Done))
	return nil
}

// awaitFree waits until no proxy has requests in flight on instances that were drained with a
// revision.
func awaitFree(ctx context.Context, s *session.Session, conn *session.Conn, revision int64, drained []instance.Key, limit time.Duration) error {
	var all, keys []instance.Key
	for _, k := range drained {
		all = append(all, k.Each()...)
	}
	t, err := conn.Store.Reader.Reports(ctx, all)
	if err != nil {
		return s.Hint(err)
	}
	for _, k := range drained {
		// An engine in both roles may have an entry for one of them only.
		held := slices.DeleteFunc(k.Each(), func(one instance.Key) bool { return t.Intents[one].Intent == "" })
		if len(held) == 0 {
			return errEnded(k)
		}
		keys = append(keys, held...)
	}
	state, err := awaitProxies(ctx, s, conn, revision, keys, limit)
	vanished := ""
	if len(state.Vanished) > 0 {
		verb, it := "vanished", "it"
		if len(state.Vanished) > 1 {
			it = "they"
		}
		vanished = fmt.Sprintf("%s %s before %s had reported that no requests are in flight there, and may still have requests", strings.Join(state.Vanished, ", "), verb, it)
	}
	switch {
	case errors.Is(err, errTimeout):
		text := fmt.Sprintf("not idle after %s: %s", limit, strings.Join(state.Open, "; "))
		if vanished != "" {
			text += "; " + vanished
		}
		return cli.Exit(fmt.Errorf("%s. The drain stays in effect", text), exitTimeout)
	case errors.Is(err, errInterrupted):
		return fmt.Errorf("%w. The drain stays in effect", err)
	case err != nil:
		return err
	case vanished != "":
		return cli.Exit(fmt.Errorf("%s. The drain stays in effect", vanished), exitVanished)
	case state.Done == 0:
		fmt.Fprintln(s.Out.Stderr, "Note: no proxy uses this etcd, so pdctl waited for none.")
	}
	return nil
}

// Errors of a wait whose limit has passed or whose context has ended.
var (
	errTimeout     = errors.New("the time has passed")
	errInterrupted = errors.New("interrupted")
)

// awaitProxies reads the reports of proxies until all of them meet the condition, or the limit
// has passed. It writes its progress to stderr.
func awaitProxies(ctx context.Context, s *session.Session, conn *session.Conn, revision int64, keys []instance.Key, limit time.Duration) (drainproof.State, error) {
	p, end := drainproof.New(revision, keys), time.NewTimer(limit)
	defer end.Stop()
	same := sameMembership(ctx, conn)
	var state drainproof.State
	var last string
	for {
		start, gap := time.Now(), waitPoll
		var away []string // the error of etcd, if any
		t, err := conn.Store.Reader.Reports(ctx, keys)
		switch {
		case ctx.Err() != nil:
			return state, errInterrupted
		case session.RefusedUser(err):
			return state, err
		case err != nil: // etcd may have no leader for a moment
			away = []string{"etcd does not answer"}
			if !errors.Is(err, etcd.ErrUnreachable) {
				away[0] = instance.Printable(err.Error(), 300)
			}
			progress(s, &last, away[0]+", still waiting")
		default:
			if err := drainEnded(t, keys); err != nil {
				return state, err
			}
			p.See(t, start, same)
			if state = p.State(start); state.Over() {
				return state, nil
			}
			waiting := slices.Clone(state.Open)
			for _, name := range state.Vanished {
				waiting = append(waiting, name+", which has vanished")
			}
			progress(s, &last, fmt.Sprintf("%d of %s done; waiting for %s", state.Done, output.Proxies(state.Done+len(waiting)), strings.Join(waiting, "; ")))
			gap = max(gap, 10*time.Since(start)) // reports of many proxies are large
		}
		next := time.NewTimer(gap)
		select {
		case <-ctx.Done():
			next.Stop()
			return state, errInterrupted
		case <-end.C:
			next.Stop()
			state.Open = append(state.Open, away...)
			return state, errTimeout
		case <-next.C:
		}
	}
}

// drainEnded returns an error if a drain is no longer active.
func drainEnded(t store.Reports, keys []instance.Key) error {
	for _, k := range keys {
		if t.Intents[k].Intent == "" {
			return errEnded(k)
		}
	}
	return nil
}

func errEnded(k instance.Key) error {
	return fmt.Errorf("the drain of %s has ended meanwhile: it was lifted or has expired", k)
}

// sameMembership returns a function that reports whether the membership is the same at two
// revisions. It caches the answers of etcd.
func sameMembership(ctx context.Context, conn *session.Conn) drainproof.Same {
	known := map[[2]int64]bool{}
	return func(a, b int64) bool {
		q := [2]int64{a, b}
		if is, ok := known[q]; ok {
			return is
		}
		is, err := conn.Store.Reader.SameMembership(ctx, a, b)
		if err != nil {
			return false // retried at the next reading
		}
		known[q] = is
		return is
	}
}

// progress prints a text on stderr unless it repeats the last one.
func progress(s *session.Session, last *string, text string) {
	if *last != text {
		*last = text
		fmt.Fprintln(s.Out.Stderr, text)
	}
}
