// Package transfer implements export and import, which copy the keys that operators have written
// from one etcd to another.
package transfer

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const exportHelp = `export prints what operators have stored in etcd, for an import into another etcd:
static instances, pending adds, and overrides (drains, cordons, removals, weights).

It prints JSON lines. The first describes the export; every other line is one key with
its value. Instances with a lease are listed as skipped: their agents register them again
in the new etcd. The export has no secrets.`

const exportExamples = `  pdctl export > fleet.jsonl
  pdctl export | pdctl import --etcd-endpoints 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379 -`

// Export returns the command export.
func Export(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "export", Short: "write out what operators stored in etcd", Long: exportHelp, Example: exportExamples,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.Out.TextOnly("an export is JSON lines already"); err != nil {
				return err
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error { return export(cmd.Context(), s, conn) })
		},
	}
}

func export(ctx context.Context, s *session.Session, conn *session.Conn) error {
	entries, revision, err := conn.Store.Transfer.Export(ctx)
	if err != nil {
		return s.Hint(err)
	}
	return writeExport(s.Out.Stdout, exportHeader{
		Format: formatName, V: formatVersion, Prefix: conn.Layout.Root(), Revision: revision, At: time.Now().UTC().Truncate(time.Second),
	}, entries)
}
