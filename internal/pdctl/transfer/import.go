package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const importHelp = `import writes the output of "pdctl export" into another etcd. FILE can be - for
standard input.

pdctl checks the whole file before it writes anything. It writes a key only if it does
not exist, in one transaction with its audit entry, so an import can be repeated, also
after an interruption. An existing key with another value is not changed, and the exit
code is 1; use "pdctl remove" and "pdctl add". Instances of agents are not imported: start
the agents with the new etcd.`

const importExamples = `  pdctl import --etcd-endpoints 10.0.0.1:2379 --dry-run fleet.jsonl
  pdctl import --etcd-endpoints 10.0.0.1:2379 fleet.jsonl`

// Import returns the command import.
func Import(s *session.Session) *cobra.Command {
	var reason string
	var dry bool
	cmd := &cobra.Command{
		Use: "import FILE|-", Short: "write an export into another etcd", Long: importHelp, Example: importExamples,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			entries, err := openExport(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error { return importAll(cmd.Context(), s, conn, entries, reason, dry) })
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what would be written, and write nothing")
	cmd.Flags().StringVar(&reason, "reason", "moved from another etcd", "reason, for the audit log")
	return cmd
}

func openExport(path string, stdin io.Reader) ([]store.Carried, error) {
	if path == "-" {
		return readExport(stdin)
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, cli.Wrong(err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readExport(f)
}

// importResult is the result for one key.
type importResult struct {
	Kind    store.KeyKind `json:"kind"`
	Role    instance.Role `json:"role"`
	Address string        `json:"address"`
	Outcome string        `json:"outcome"` // written, same, differs, moot, skipped, failed
	Error   string        `json:"error,omitempty"`
}

func importAll(ctx context.Context, s *session.Session, conn *session.Conn, entries []store.Carried, reason string, dry bool) error {
	results := []importResult{}
	failed := 0
	for _, c := range entries {
		r := importResult{Kind: c.Kind, Role: c.Key.Role, Address: instance.Printable(c.Key.Address, 0)}
		if c.Skip != "" {
			r.Outcome = "skipped"
		} else if outcome, err := conn.Store.Transfer.Import(ctx, c, reason, dry); err != nil {
			r.Outcome, r.Error = "failed", err.Error()
			if errors.Is(err, schema.ErrForeign) || errors.Is(err, schema.ErrNewer) {
				return err // none of the others could be written either
			}
		} else {
			r.Outcome = string(outcome)
		}
		if r.Outcome == "failed" || r.Outcome == string(store.MoveDiffers) {
			failed++
		}
		results = append(results, r)
		if !s.Out.Structured() {
			fmt.Fprintf(s.Out.Stdout, "%s %s/%s: %s\n", r.Kind, r.Role, r.Address, r.text(c, dry))
		}
	}
	if s.Out.Structured() {
		if err := s.Out.Write(map[string]any{"dry_run": dry, "results": results}); err != nil {
			return err
		}
	} else if len(results) == 0 {
		fmt.Fprintln(s.Out.Stdout, "The export has nothing to import.")
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d were not imported", failed, len(results))
	}
	return nil
}

// text returns the outcome as text.
func (r importResult) text(c store.Carried, dry bool) string {
	switch r.Outcome {
	case string(store.MoveWritten):
		if dry {
			return "would be written"
		}
		return "written"
	case string(store.MoveSame):
		return "already exists"
	case string(store.MoveDiffers):
		return "another value exists, and was not changed; see pdctl get " + string(r.Role) + "/" + r.Address
	case string(store.MovePointless):
		return "skipped: the new etcd already has the instance, or its removal"
	case "skipped":
		return "skipped: " + instance.Printable(c.Skip, 200)
	default:
		return "failed: " + r.Error
	}
}
