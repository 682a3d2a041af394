// Package fleet implements commands for the settings of the fleet. diff and revert show and undo
// changes; export writes the settings as a file, and apply sets them from a file.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const diffHelp = `diff shows what operators have changed since a revision: static instances, intents (drains,
cordons, removals, weights), limits of keys and model routes. "pdctl history" has the
revisions, and who made which change; "revision" of "pdctl status" is the current one. The
change of REVISION itself is not shown: it compares with the state after that change. To see
it too, use --from N-1: the change of revision 4711 only is --from 4710 --to 4711.

Without --to, it compares with the current values in etcd. Changes that were undone in
between are not shown. Registrations and states of agents are not part of it: see history.

The values come from the audit log (30 days). If it begins after REVISION, stderr has a
warning: changes of more than 30 days ago are not shown. Changes of older releases, and of
more than 16 KiB, are not recorded: then the exit code is 1.`

const revertHelp = `revert restores static instances, intents (drains, cordons, removals, weights), limits of
keys and model routes as they were after a revision. It undoes every later change, in one
transaction of at most 100 keys. "pdctl diff --from REVISION" shows them before, and
--dry-run what would be written.

To undo one change of "pdctl history" only, write "revert --only N" with its revision, which
is short for "revert N-1 --to N". A revert can be reverted.

If a key has been changed since in a way that the revert would overwrite, nothing is
written, the error names the key, and the exit code is 1. The same applies if the former
value is not recorded, or had a time limit (--for).

The audit log has 30 days. If it begins after REVISION, earlier changes may be missing and are
not undone: revert asks for confirmation, or needs --yes.`

// Diff returns the command diff.
func Diff(s *session.Session) *cobra.Command {
	var from, to int64
	cmd := &cobra.Command{
		Use: "diff --from REVISION", Short: "show what operators changed since a revision", Long: diffHelp,
		Example: "  pdctl diff --from 4710\n  pdctl diff --from 4710 --to 4711 # the change of revision 4711",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := check(from, to); err != nil {
				return err
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error { return diff(cmd.Context(), s, conn, from, to) })
		},
	}
	cmd.Flags().Int64Var(&from, "from", 0, "revision to compare with")
	cmd.Flags().Int64Var(&to, "to", 0, "revision to compare with --from; 0: the current one")
	return cmd
}

// Revert returns the command revert.
func Revert(s *session.Session) *cobra.Command {
	var to, only int64
	cmd := &cobra.Command{
		Use: "revert REVISION | --only REVISION", Short: "restore what operators have set as it was at a revision", Long: revertHelp,
		SuggestFor: []string{"undo", "rollback"},
		Example:    "  pdctl revert 4710 --dry-run\n  pdctl revert --only 4711 --reason \"wrong rack\"",
		Args:       cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) != cmd.Flags().Changed("only") || only != 0 && to != 0 {
				return cli.Wrongf("name either a revision to return to, with --to if needed, or the one to undo with --only; pdctl history shows them")
			}
			if len(args) == 0 {
				if only < 2 {
					return cli.Wrongf("--only %d: name a revision of 2 or more; pdctl history shows them", only)
				}
				args, to = []string{strconv.FormatInt(only-1, 10)}, only
			}
			from, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return cli.Wrongf("%q: name a revision; pdctl history shows them", instance.Printable(args[0], 80))
			}
			if err := check(from, to); err != nil {
				return err
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error { return revert(cmd.Context(), s, conn, from, to) })
		},
	}
	cmd.Flags().Int64Var(&to, "to", 0, "undo the changes up to this revision; 0: all")
	cmd.Flags().Int64Var(&only, "only", 0, "undo only the change of this revision")
	return s.Audits(cmd)
}

func check(from, to int64) error {
	switch {
	case from <= 0:
		return cli.Wrongf("name a revision of 1 or more, not %d; pdctl history shows them", from)
	case to < 0 || to > 0 && to <= from:
		return cli.Wrongf("--to %d: must be later than %d", to, from)
	}
	return nil
}

// read returns the changes between two revisions, a warning if some of them may be missing, and the current
// fleet.
func read(ctx context.Context, s *session.Session, conn *session.Conn, from, to int64) (changes []store.Change, gap string, now *store.Fleet, err error) {
	if err := s.CheckRevision(ctx, conn, max(from, to)); err != nil {
		return nil, "", nil, err
	}
	if changes, gap, err = conn.Store.Edits.Between(ctx, from, to); err == nil {
		now, err = conn.Store.Edits.Read(ctx)
	}
	return changes, gap, now, s.Hint(err)
}

func diff(ctx context.Context, s *session.Session, conn *session.Conn, from, to int64) error {
	changes, gap, now, err := read(ctx, s, conn, from, to)
	if err != nil {
		return err
	}
	if to == 0 {
		changes = now.Update(changes)
		if from >= now.Revision {
			gap = ""
		}
	}
	if gap != "" {
		fmt.Fprintf(s.Out.Stderr, "warning: %s\n", gap)
	}
	if len(changes) == 0 && !s.Out.Structured() {
		return s.Out.Println("no differences")
	}
	return report(s, changes, 0)
}

func revert(ctx context.Context, s *session.Session, conn *session.Conn, from, to int64) error {
	changes, gap, now, err := read(ctx, s, conn, from, to)
	if err != nil {
		return err
	}
	if gap != "" && from < now.Revision {
		if err := s.ConfirmGap(ctx, gap); err != nil {
			return err
		}
	}
	values, err := now.Undo(changes)
	if err != nil {
		return nothing(err)
	}
	if len(values) > store.MaxEdits {
		return nothing(fmt.Errorf("%w: %d keys would be restored, the limit is %d; undo a part with --to", store.ErrTooMany, len(values), store.MaxEdits))
	}
	return write(ctx, s, conn, now, values, "revert")
}

func nothing(err error) error {
	return fmt.Errorf("%w; nothing was written", errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")))
}

// write asks for a confirmation where one is needed, writes values and reports them.
func write(ctx context.Context, s *session.Session, conn *session.Conn, now *store.Fleet, values map[string]*string, what string) error {
	var taken []instance.Key
	for key, value := range values {
		n := conn.Layout.Parse(conn.Layout.Root() + key)
		k := n.Key
		switch {
		case n.Kind == schema.KindInstance && value == nil:
			taken = append(taken, k)
		case n.Kind == schema.KindOverride && value != nil:
			if o, err := schema.DecodeOverride([]byte(*value)); err == nil && (o.State != "" || o.Weight != nil && *o.Weight == 0) {
				taken = append(taken, k)
			}
		}
	}
	if err := s.Confirm(ctx, conn, taken); err != nil {
		return err
	}
	changes := now.Changes(values)
	revision := int64(0)
	for len(changes) > 0 {
		batch, size := map[string]*string{}, 0
		for _, c := range changes[:min(len(changes), store.MaxEdits)] {
			if c.After != nil {
				size += len(*c.After)
			}
			if size > store.MaxEditBytes && len(batch) > 0 {
				break
			}
			batch[c.Key] = c.After
		}
		at, err := conn.Store.Edits.Write(ctx, now, batch, what, s.Reason)
		switch {
		case err != nil && revision > 0:
			return fmt.Errorf("%w; %d of %d changes were written; repeat the command to write the others", err, len(values)-len(changes), len(values))
		case errors.Is(err, store.ErrConflict):
			return nothing(err)
		case err != nil: // it may have been written
			return s.Hint(err)
		}
		revision, changes = at, changes[len(batch):]
	}
	return report(s, now.Changes(values), revision)
}

// report prints changes. revision is that of their transaction, 0 if they were not written by this
// command.
func report(s *session.Session, changes []store.Change, revision int64) error {
	if s.Out.Structured() {
		all := map[string]any{"changes": append([]store.Change{}, changes...)}
		if revision > 0 {
			all["revision"] = revision
		}
		return s.WriteChange(all)
	}
	for _, c := range changes {
		kind, lines := "~", ""
		for _, v := range []struct {
			mark  string
			value *string
			ends  bool
		}{{"-", c.Before, c.BeforeEnds}, {"+", c.After, c.AfterEnds}} {
			if v.value == nil {
				continue
			}
			if lines += "\n    " + v.mark + " " + output.EscapeValue([]byte(*v.value)); v.ends {
				lines += " (for a time)"
			}
		}
		switch {
		case c.Before == nil:
			kind = "+"
		case c.After == nil:
			kind = "-"
		}
		s.Out.Printf("%s %s%s\n", kind, instance.Printable(c.Key, 0), lines)
	}
	switch {
	case len(changes) == 0:
		return s.Out.Println("nothing to change")
	case revision > 0 && !s.Dry.On:
		return s.Out.Println(fmt.Sprintf("written at revision %d; keys: %d", revision, len(changes)))
	}
	return nil
}
