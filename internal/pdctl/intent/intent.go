// Package intent implements the commands that set the intent for instances (drain, cordon,
// weight, role and their inverses), and wait, which waits for their effect.
package intent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const drainHelp = `drain stops new requests to an instance; requests that run there go on.

The drain is stored in etcd, separately from the instance's record, and takes precedence.
It stays when the engine or the agent restarts, until "pdctl undrain". With --for it ends
after that time.

With --wait, drain returns when the instance is idle. If a proxy appears in etcd meanwhile,
drain waits 9 s for others: after a pause of the machine they return one by one. Exit codes:

  0  every proxy has applied the drain and has no requests in flight there: you can
     stop the node
  3  a proxy vanished, or stopped answering, before it had reported that; it is named.
     It may still have requests: check it, then drain again
  4  --timeout has passed; the proxies with requests in flight are named
  1  any other failure, for example the drain was undone meanwhile

With --move-after, streams that still run after that time continue on other instances, if
the proxies have --continue-streams and the stream can move. The others run to their end.

A prefill instance is idle when decode has fetched its KV caches, or when the engine
has dropped them. For an engine in both roles, drain "both". Progress goes to stderr.
With every exit code the drain stays in effect, and "pdctl drain --wait" can be repeated.

If no usable instance of the role would be left, drain asks; without a terminal it needs
--yes. Draining an instance that is not in etcd is an error (exit 1). --force drains it anyway.
Use it for an instance without a key that proxies still use (view "orphan" in /status).`

const cordonHelp = `cordon stops new requests to an instance; requests that run there go on.

For the proxies it is the same as a drain. Use it for an instance that stays in the fleet:
no command waits until it is idle. "pdctl uncordon" undoes it; with --for it ends after
that time. If an instance is both drained and cordoned, the last command counts.`

const undrainHelp = `undrain lifts a drain: proxies use the instance again, as it registers.

It does not lift a cordon or a removal; that is an error (exit 1). An instance that is not
drained is not changed.`

const uncordonHelp = `uncordon lifts a cordon: proxies use the instance again, as it registers.

It does not lift a drain or a removal; that is an error (exit 1). An instance that is not
cordoned is not changed.`

// intentFlags are the flags of the commands that set intents.
type intentFlags struct {
	options store.IntentOptions
	wait    bool
	// move is --move-after.
	move time.Duration
	// limit is --timeout. With --wait it bounds the wait, otherwise the calls to etcd.
	limit time.Duration
}

func (f *intentFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.options.Reason, "reason", "", "reason, for the audit log and /status")
	settings.DurationVar(fs, &f.options.For, "for", 0, "how long it is in effect, e.g. 2h; 0: until it is undone")
}

// checkWait is check for commands with --wait. Without --wait, their --timeout limits calls to etcd.
func (f *intentFlags) checkWait(s *session.Session, cmd *cobra.Command) error {
	switch given := cmd.Flags().Changed("timeout"); {
	case given && f.limit <= 0:
		return cli.Wrongf("--timeout %s: must be more than zero", f.limit)
	case s.Dry.On && f.wait:
		return cli.Wrongf("--dry-run and --wait exclude each other: there is nothing to wait for")
	case given && !f.wait:
		s.Timeout = f.limit
	}
	return f.check()
}

func (f *intentFlags) check() error {
	if len(f.options.Reason) > maxReason {
		return cli.Wrongf("--reason: longer than %d bytes", maxReason)
	}
	return session.CheckFor(f.options.For)
}

// maxMoveAfter bounds --move-after.
const maxMoveAfter = 24 * time.Hour

// maxReason bounds the text of a reason, in bytes.
const maxReason = 1024

// idle is the text of an instance whose --wait is over.
const idle = "idle: no proxy has requests in flight there"

// waitLimit is the default of --timeout for drain --wait and wait.
const waitLimit = 5 * time.Minute

// Drain returns the command drain.
func Drain(s *session.Session) *cobra.Command {
	var f intentFlags
	cmd := &cobra.Command{
		Use: "drain [ROLE/]HOST:PORT...", Short: "stop new requests to instances, and wait until they are idle", Long: drainHelp,
		Example: "  pdctl drain decode 10.0.0.8:8200 --wait --timeout 5m --reason \"new disks\"\n" +
			"  pdctl drain both 10.0.0.6:8100\n  pdctl drain decode --selector rack=3 --dry-run\n  pdctl drain prefill 10.0.0.7:8100 10.0.0.8:8100 --for 30m",
		Args: s.NamedOrSelected(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkWait(s, cmd); err != nil {
				return err
			}
			if cmd.Flags().Changed("move-after") {
				if f.move < 0 || f.move > maxMoveAfter || f.move%time.Second != 0 {
					return cli.Wrongf("--move-after %s: must be whole seconds, from 0s to 24h", f.move)
				}
				f.options.MoveAfter = &f.move
			}
			return s.WithChosen(cmd.Context(), args, 0, func(conn *session.Conn, keys []instance.Key) error {
				return intend(cmd.Context(), s, conn, keys, instance.Drain, f)
			})
		},
	}
	f.add(cmd)
	fs := cmd.Flags()
	fs.BoolVar(&f.wait, "wait", false, "return when no proxy has requests in flight there")
	settings.DurationVar(fs, &f.limit, "timeout", waitLimit, "how long to try to reach etcd, by default 2s; with --wait: how long to wait")
	settings.DurationVar(fs, &f.move, "move-after", 0, "continue streams that still run after this time on other instances, with proxies that have --continue-streams; without it they run to their end")
	fs.BoolVar(&f.options.Force, "force", false, "drain it also if etcd does not know it")
	return cmd
}

// Cordon returns the command cordon.
func Cordon(s *session.Session) *cobra.Command {
	var f intentFlags
	cmd := &cobra.Command{
		Use: "cordon [ROLE/]HOST:PORT...", Short: "stop new requests to instances", Long: cordonHelp,
		Example: "  pdctl cordon decode 10.0.0.8:8200 --reason \"slow disk\"\n  pdctl cordon prefill 10.0.0.7:8100 --for 1h",
		Args:    s.NamedOrSelected(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return s.WithChosen(cmd.Context(), args, 0, func(conn *session.Conn, keys []instance.Key) error {
				return intend(cmd.Context(), s, conn, keys, instance.Cordon, f)
			})
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.options.Force, "force", false, "cordon it also if etcd does not know it")
	return cmd
}

// Undrain returns the command undrain.
func Undrain(s *session.Session) *cobra.Command {
	return liftCommand(s, instance.Drain, undrainHelp, "  pdctl undrain decode 10.0.0.8:8200 --reason \"disks replaced\"\n  pdctl undrain both 10.0.0.6:8100")
}

// Uncordon returns the command uncordon.
func Uncordon(s *session.Session) *cobra.Command {
	return liftCommand(s, instance.Cordon, uncordonHelp, "  pdctl uncordon decode 10.0.0.8:8200 10.0.0.9:8200")
}

func liftCommand(s *session.Session, state instance.Intent, long, examples string) *cobra.Command {
	var f intentFlags
	name := "un" + string(state)
	cmd := &cobra.Command{
		Use: name + " [ROLE/]HOST:PORT...", Short: "lift a " + string(state), Long: long, Example: examples,
		Args: s.NamedOrSelected(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return s.WithChosen(cmd.Context(), args, 0, func(conn *session.Conn, keys []instance.Key) error {
				return lift(cmd.Context(), s, conn, keys, state, f.options.Reason)
			})
		},
	}
	cmd.Flags().StringVar(&f.options.Reason, "reason", "", "reason, for the audit log")
	return cmd
}

func intend(ctx context.Context, s *session.Session, conn *session.Conn, keys []instance.Key, state instance.Intent, f intentFlags) error {
	if err := s.Confirm(ctx, conn, keys); err != nil {
		return err
	}
	words := map[instance.Intent]string{instance.Drain: "drained", instance.Cordon: "cordoned"}
	results, revision := apply(s, keys, func(k instance.Key) (store.IntentResult, error) {
		done, err := conn.Store.Intents.Intend(ctx, k, state, f.options)
		if err == nil && !done.Known && !done.Changed {
			err = errors.New("there is no such instance; see pdctl list. If proxies use it without its key (pdctl status), add --force")
		}
		return done, err
	}, func(r *session.Result, done store.IntentResult) {
		r.Outcome, r.Text, r.Interim = words[state], words[state], f.wait
		switch {
		case !done.Changed:
			r.Text += " already"
		case f.options.For > 0:
			r.Text += fmt.Sprintf(" for %s", f.options.For)
		}
		switch {
		case done.Role != "":
			r.Text += fmt.Sprintf("; it was %s-only before, and serves both roles after the %s", done.Role, state)
		case done.Was != "" && done.Was != state:
			r.Text += fmt.Sprintf("; it was %s before", words[done.Was])
		}
	})
	var drained []instance.Key
	for _, r := range results {
		if r.Outcome != "failed" {
			drained = append(drained, instance.Key{Role: r.Role, Address: r.Address})
		}
	}
	if !f.wait || len(drained) == 0 {
		return s.Finish(results)
	}
	waited := awaitFree(ctx, s, conn, revision, drained, f.limit)
	for i := range results {
		if waited == nil && results[i].Outcome != "failed" {
			results[i].Outcome, results[i].Text, results[i].Interim = "idle", idle, false
			s.Line(results[i])
		}
	}
	return cmp.Or(waited, s.Finish(results))
}

func lift(ctx context.Context, s *session.Session, conn *session.Conn, keys []instance.Key, state instance.Intent, reason string) error {
	results, _ := apply(s, keys, func(k instance.Key) (store.IntentResult, error) {
		return conn.Store.Intents.Lift(ctx, k, state, reason)
	}, func(r *session.Result, done store.IntentResult) {
		if r.Outcome, r.Text = "already", fmt.Sprintf("there is no %s; nothing changed", state); done.Changed {
			r.Outcome, r.Text = "un"+string(state)+"ed", "un"+string(state)+"ed; proxies use it again as it registers"
		}
	})
	return s.Finish(results)
}

// apply changes the intent of each instance and prints the result, whose text is set by say. It
// also returns the highest revision.
func apply(s *session.Session, keys []instance.Key, do func(instance.Key) (store.IntentResult, error), say func(*session.Result, store.IntentResult)) ([]session.Result, int64) {
	results, revision := make([]session.Result, 0, len(keys)), int64(0)
	for _, k := range keys {
		r := session.Result{Role: k.Role, Address: k.Address}
		done, err := do(k)
		switch {
		case err != nil:
			r = r.Failed("%w", err)
		case !done.Known && !done.Changed:
			r = r.Failed("there is no such instance; see pdctl list")
		default:
			r.Revision = done.Revision
			say(&r, done)
		}
		revision = max(revision, done.Revision)
		results = append(results, r)
		s.Line(r)
	}
	return results, revision
}
