package show

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const versionHelp = `version prints the version of pdctl and those of the proxies in etcd.

If etcd does not answer, only pdctl's version is printed, with the reason on stderr, and the
exit code is 0.`

// Version returns the command version.
func Version(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the versions of pdctl and of the proxies", Long: versionHelp,
		Example: "  pdctl version\n  pdctl version -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			proxies := []map[string]string{}
			err := s.With(cmd.Context(), func(conn *session.Conn) error {
				list, err := conn.Store.Reader.Proxies(cmd.Context())
				for _, p := range list {
					proxies = append(proxies, map[string]string{"id": instance.Printable(p.ID, 64), "address": instance.Printable(p.Address, 100), "version": instance.Printable(p.Version, 40)})
				}
				return err
			})
			if err != nil {
				fmt.Fprintf(s.Out.Stderr, "versions of the proxies: %s\n", session.WithoutHint(err))
			}
			if s.Out.Structured() {
				return s.Out.Write(map[string]any{"pdctl": version.String(), "proxies": proxies})
			}
			s.Out.Printf("pdctl %s\n", version.String())
			for _, p := range proxies {
				s.Out.Printf("proxy %s %s\n", cmp.Or(p["address"], p["id"]), cmp.Or(p["version"], "?"))
			}
			return nil
		},
	}
}
