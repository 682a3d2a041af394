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
	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/drainproof"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const waitHelp = `wait returns when instances have a state, or when every proxy has applied a revision.

--for state=STATE waits until all selected instances have the state, at least one. STATE is
ready or another word of the column STATE of pdctl list, or one of:

  removed   no selected instance is left: removed by an operator, or not registered
  drained   drained with "pdctl drain", and no proxy has requests in flight there; named
            instances may have left since. One that is neither registered nor drained
            is an error (exit 1)

Select instances by name (role/host:port), by role, or with --selector; without these, all.
With --count N it is enough that N have the state, with prefill=N decode=M that N prefill and
M decode instances have it; drained accepts neither. Set these when you start a fleet:
instances that are not registered yet cannot be selected. wait --for also waits for etcd.

The state is that in etcd: after a change, wait for the proxies with --revision.

--revision N waits until every running proxy has applied that revision. drain, cordon,
weight and the admin routes of a proxy answer with the revision of their change ("revision"
of -o json); status shows the newest one. If a proxy vanishes meanwhile, wait does not wait
for it, and names it on stderr. If only proxies of older releases are left, which may not
know the limits or model routes that changed, wait names them and fails.

Exit codes: 0 done; 3 (state=drained) a proxy disappeared before it confirmed; 4 --timeout has
passed, and what is missing is named.`

// Exit codes other than 0, 1 and 2.
const (
	exitVanished = 3 // a proxy disappeared before it had confirmed that an instance is idle
	exitTimeout  = 4 // --timeout of a wait has passed
)

// waitPoll is the shortest interval between two readings of a wait.
const waitPoll = 200 * time.Millisecond

// waitPollMost is the longest interval: a wait must poll again before its limit, also while etcd is slow.
const waitPollMost = time.Second

// noProxies is how long a wait that finds no proxy looks for one. After a stall of etcd or of the machine,
// all leases have expired, and running proxies register again within about a second.
const noProxies = 3 * time.Second

// Wait returns the command wait.
func Wait(s *session.Session) *cobra.Command {
	var revision int64
	var condition string
	var w waitFor
	cmd := &cobra.Command{
		Use: "wait --for state=STATE [ROLE | ROLE=N... | ROLE/HOST:PORT...]", Short: "wait until instances have a state, or until every proxy has applied a revision", Long: waitHelp,
		Example: "  pdctl wait --for state=ready prefill=2 decode=3\n  pdctl wait --for state=ready --count 2\n  pdctl wait --for state=ready decode --selector rack=3 --timeout 10m\n" +
			"  pdctl wait --for state=drained decode/10.0.0.8:8200\n  pdctl wait --for state=removed prefill/10.0.0.7:8100\n" +
			"  pdctl wait --revision 4711\n  pdctl wait --revision $(pdctl status -o json | jq .revision) --timeout 30s",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			switch {
			case w.limit <= 0:
				return cli.Wrongf("--timeout %s: must be more than zero", w.limit)
			case (condition == "") == (revision == 0):
				return cli.Wrongf("use either --for state=STATE or --revision N")
			case condition == "" && (len(args) > 0 || w.count != 0 || len(s.Selector) > 0):
				return cli.Wrongf("instances, --selector and --count need --for")
			case condition == "" && revision < 0:
				return cli.Wrongf("--revision %d: set it to the revision of a change, from drain -o json", revision)
			case condition == "":
				return s.With(cmd.Context(), func(conn *session.Conn) error { return waitApplied(cmd.Context(), s, conn, revision, w.limit) })
			case w.count < 0 || cmd.Flags().Changed("count") && w.count == 0:
				return cli.Wrongf("--count %d: must be 1 or more", w.count)
			}
			if w.state, err = parseFor(condition); err != nil {
				return err
			}
			w.sel = s.Selector
			if w.each, err = parseEach(args); err != nil {
				return err
			}
			switch {
			case w.each != nil && w.count != 0:
				return cli.Wrongf("use either --count N, or prefill=N decode=N")
			case w.state == drained && (w.each != nil || w.count != 0):
				return cli.Wrongf("state=drained: select the instances, instead of --count N or prefill=N decode=N")
			case w.each != nil:
				args = nil
			case len(args) == 1:
				if role, err := instance.ParseRole(args[0]); err == nil {
					w.role, args = role, nil
				}
			case slices.ContainsFunc(args, func(arg string) bool { _, err := instance.ParseRole(arg); return err == nil }):
				return cli.Wrongf("name one role, or the number of each: prefill=2 decode=3")
			}
			if len(args) > 0 {
				named, err := s.Named(cmd.Context(), args, session.BothRoles)
				if err != nil {
					return err
				}
				w.named = instance.Memberships(named)
			}
			return w.run(cmd.Context(), s)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&condition, "for", "", "state that the instances must have: state=ready, state=removed, state=drained or another state")
	fs.IntVar(&w.count, "count", 0, "with --for: how many instances must have the state; default: all that are selected")
	fs.Int64Var(&revision, "revision", 0, "revision that every proxy must have applied")
	settings.DurationVar(fs, &w.limit, "timeout", waitLimit, "how long to wait")
	return cmd
}

func waitApplied(ctx context.Context, s *session.Session, conn *session.Conn, revision int64, limit time.Duration) error {
	if err := s.CheckRevision(ctx, conn, revision); err != nil {
		return err
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
	s.Out.Printf("revision %d: applied by %s\n", revision, output.Proxies(state.Done))
	return nil
}

// awaitFree waits until no proxy has requests in flight on instances that were drained at a revision.
func awaitFree(ctx context.Context, s *session.Session, conn *session.Conn, revision int64, drained []instance.Key, limit time.Duration) error {
	state, err := awaitProxies(ctx, s, conn, revision, drained, limit)
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
	case errors.Is(err, errInterrupted), session.RefusedUser(err):
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
	errTimeout     = errors.New("timed out")
	errInterrupted = errors.New("interrupted")
)

// awaitProxies reads the reports of proxies until all of them meet the condition, or the limit
// has passed. It writes its progress to stderr.
func awaitProxies(ctx context.Context, s *session.Session, conn *session.Conn, revision int64, drained []instance.Key, limit time.Duration) (drainproof.State, error) {
	keys := instance.Memberships(drained)
	var p *drainproof.Proof                            // nil before the first reading
	newest := revision                                 // newest known revision of etcd
	limited, cancel := context.WithTimeout(ctx, limit) // limits the pauses: a read is not cancelled
	defer cancel()
	changed, look := changed(ctx, conn), time.Now().Add(min(noProxies, limit/2))
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
			free := func(k instance.Key) bool { return t.Intents[k].Intent == "" }
			if p == nil {
				// An engine in both roles may have an entry for one of them only.
				keys = slices.DeleteFunc(keys, func(k instance.Key) bool {
					return free(k) && !free(k.Other()) && slices.Contains(drained, instance.Key{Role: instance.Both, Address: k.Address})
				})
				p = drainproof.New(revision, keys)
			}
			switch i := slices.IndexFunc(keys, free); {
			case t.Revision < revision, i >= 0 && t.Revision < newest:
				return state, fmt.Errorf("etcd was wiped or restored from a backup: it is at revision %d, and was at %d; see pdctl list", t.Revision, newest)
			case i >= 0:
				return state, fmt.Errorf("the drain of %s has ended meanwhile: it was lifted or has expired", keys[i])
			}
			newest = t.Revision
			p.See(t, start, changed)
			state = p.State(start)
			unused := state.Done == 0 && len(state.Vanished) == 0
			switch {
			case !state.Over() || (unused || state.Older > 0) && start.Before(look):
			case state.Older > 0:
				return state, fmt.Errorf("not every proxy has applied revision %d: %s", revision, strings.Join(state.Open, "; "))
			default:
				return state, nil
			}
			waiting := slices.Clone(state.Open)
			if len(state.Vanished) > 0 {
				waiting = append(waiting, "vanished: "+strings.Join(state.Vanished, ", "))
			}
			if len(waiting) == 0 && state.Appeared {
				waiting = append(waiting, "a proxy has just appeared, and others may follow")
			}
			if len(waiting) == 0 && unused {
				waiting = append(waiting, "no proxy is registered in etcd")
			}
			progress(s, &last, fmt.Sprintf("%d of %s done, still waiting: %s", state.Done, output.Proxies(state.Done+state.Waiting+len(state.Vanished)), strings.Join(waiting, "; ")))
			gap = pollGap(start)
		}
		switch {
		case sleep.For(limited, gap):
		case ctx.Err() != nil:
			return state, errInterrupted
		default:
			state.Open = append(state.Open, away...)
			return state, errTimeout
		}
	}
}

// pollGap returns the pause after a poll that began at start. It grows with the duration of the poll,
// because reports of many proxies are large.
func pollGap(start time.Time) time.Duration {
	return min(max(waitPoll, 10*time.Since(start)), waitPollMost)
}

// changed returns a drainproof.Changed that caches the answers of etcd.
func changed(ctx context.Context, conn *session.Conn) drainproof.Changed {
	known := map[[2]int64][]instance.Role{}
	return func(a, b int64) ([]instance.Role, error) {
		roles, ok := known[[2]int64{a, b}]
		if ok {
			return roles, nil
		}
		roles, err := conn.Store.Reader.Changed(ctx, a, b)
		if err == nil { // else retried at the next reading
			known[[2]int64{a, b}] = roles
		}
		return roles, err
	}
}

// progress prints a text on stderr unless it repeats the last one.
func progress(s *session.Session, last *string, text string) {
	if *last != text {
		*last = text
		fmt.Fprintln(s.Out.Stderr, text)
	}
}
