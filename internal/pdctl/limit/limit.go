// Package limit implements pdctl limit, which changes the limits of API keys, and pdctl usage, which
// shows their use.
package limit

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const limitHelp = `limit shows and changes the limits of API keys, which hold for all proxies together. KEY is
the name of a key in the proxies' --api-keys-file. "default" is all clients whose key has no
name, or that need no key. Requests above a limit get status 429 with Retry-After.`

const setHelp = `set replaces all limits of a key: what is not set has no limit. Each is 1 to 1e12. Tokens
are those of the engines; cached tokens are those in the cache of the instance that
computed the prompt. Changes apply within a second, and are in the audit log.`

// Command returns the command limit.
func Command(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "limit", Short: "show and change the limits of API keys", Long: limitHelp, Example: "  pdctl limit list", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	l := instance.KeyLimits{V: 1}
	set := &cobra.Command{
		Use: "set KEY", Short: "replace the limits of an API key", Long: setHelp, Args: cobra.ExactArgs(1),
		Example: "  pdctl limit set team-a --rpm 600 --uncached-tpm 200000 --concurrent 50 --reason \"trial until May\"\n  pdctl limit set default --rpm 60 --reason trial --dry-run",
		RunE: s.Wrap(func(cmd *cobra.Command, args []string) error {
			var wrong error
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if f.Value.Type() == "int64" && f.Value.String() == "0" {
					wrong = cli.Wrongf("--%s 0: leave the flag out for no limit, or take the key out of --api-keys-file", f.Name)
				}
			})
			if wrong != nil {
				return wrong
			}
			if err := l.Check(); err != nil {
				return cli.Wrong(err)
			}
			value, _ := json.Marshal(l) // integers cannot fail
			return change(cmd.Context(), s, args[0], "set", func(d *store.Documents, k instance.Key) (int64, error) {
				return d.Put(cmd.Context(), k, value, store.DocumentOptions{Reason: s.Reason})
			})
		}),
	}
	fs := set.Flags()
	fs.Int64Var(&l.Requests, "rpm", 0, "requests per minute")
	fs.Int64Var(&l.Input, "input-tpm", 0, "tokens of prompts per minute")
	fs.Int64Var(&l.Output, "output-tpm", 0, "generated tokens per minute")
	fs.Int64Var(&l.Uncached, "uncached-tpm", 0, "tokens of prompts that were not cached, per minute")
	fs.Int64Var(&l.Concurrent, "concurrent", 0, "requests at the same time")
	rm := &cobra.Command{
		Use: "rm KEY", Short: "remove the limits of an API key", Args: cobra.ExactArgs(1), Example: "  pdctl limit rm team-a",
		RunE: s.Wrap(func(cmd *cobra.Command, args []string) error {
			return change(cmd.Context(), s, args[0], removed, func(d *store.Documents, k instance.Key) (int64, error) {
				return d.Delete(cmd.Context(), k, s.Reason)
			})
		}),
	}
	cmd.AddCommand(s.Audits(s.Writes(set)), s.Audits(s.Writes(rm)), &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "list the limits of API keys", Args: cobra.NoArgs, Example: "  pdctl limit list\n  pdctl limit list -o json",
		RunE: s.Wrap(func(cmd *cobra.Command, _ []string) error { return list(cmd.Context(), s) }),
	})
	return cmd
}

// removed is the outcome of limit rm.
const removed = "removed"

func change(ctx context.Context, s *session.Session, name, outcome string, write func(*store.Documents, instance.Key) (int64, error)) error {
	if !instance.ValidKeyName(name) {
		return cli.Wrongf("invalid name of an API key %q: must have 1 to 64 visible ASCII characters without a slash", instance.Printable(name, 80))
	}
	return s.With(ctx, func(conn *session.Conn) error {
		revision, err := write(conn.Store.Documents, instance.Key{Role: schema.Limits, Address: name})
		if err != nil {
			return s.Hint(err)
		}
		r := session.Result{Role: schema.Limits, Address: name, Outcome: outcome, Text: outcome, Revision: revision}
		switch {
		case revision == 0 && outcome == removed:
			r = r.Failed("it has no limits; see pdctl limit list")
		case revision == 0:
			r.Outcome, r.Text = "unchanged", "unchanged"
		}
		s.Line(r)
		return s.Finish([]session.Result{r})
	})
}

// listed is one key in -o json.
type listed struct {
	Key string `json:"key"`
	instance.KeyLimits
	Revision int64  `json:"revision"`
	Invalid  string `json:"invalid,omitempty"` // why proxies do not use them
}

func list(ctx context.Context, s *session.Session) error {
	return s.With(ctx, func(conn *session.Conn) error {
		documents, err := conn.Store.Documents.List(ctx, schema.Limits)
		if err != nil {
			return s.Hint(err)
		}
		proxies, err := conn.Store.Reader.Proxies(ctx)
		if err != nil && !session.RefusedUser(err) {
			return s.Hint(err)
		}
		s.NoteKept(proxies, string(schema.Limits)+"/")
		all := make([]listed, 0, len(documents))
		for _, d := range documents {
			one := listed{Key: instance.Printable(d.Address, 64), Revision: d.Revision}
			if one.KeyLimits, err = instance.DecodeKeyLimits(d.Value); err != nil {
				one.Invalid = err.Error()
			}
			all = append(all, one)
		}
		t := output.NewTable("KEY", "RPM", "INPUT TPM", "OUTPUT TPM", "UNCACHED TPM", "CONCURRENT", "PROBLEM")
		for _, one := range all {
			row := []any{one.Key}
			for _, n := range []int64{one.Requests, one.Input, one.Output, one.Uncached, one.Concurrent} {
				row = append(row, strings.TrimPrefix(strconv.FormatInt(n, 10), "0"))
			}
			t.AppendRow(append(row, one.Invalid))
		}
		return s.Out.List(map[string]any{"limits": all}, t, "No limits. Set one with: pdctl limit set KEY --rpm N")
	})
}
