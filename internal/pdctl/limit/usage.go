package limit

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const usageHelp = `usage shows what API keys have used in the last hour: the sum of what all proxies have
counted since they started. Cached tokens are those of the input that were in the cache of
the instance that computed the prompt. Refused requests were above a limit.

pdctl queries every proxy in etcd, or those of --proxy. Proxies need their admin key:
--admin-key, or ADMIN_API_KEY. The exit code is 1 when a proxy does not answer; then the
sums lack that proxy.`

// usage is the sum of the answers of all proxies.
type usage struct {
	Keys    []instance.KeyUsage `json:"keys"`
	Proxies int                 `json:"proxies"` // that have answered
	Failed  map[string]string   `json:"failed"`  // errors, by URL
}

// Usage returns the command usage.
func Usage(s *session.Session) *cobra.Command {
	var proxies []string
	var key string
	cmd := &cobra.Command{
		Use: "usage", Short: "show what API keys have used in the last hour", Long: usageHelp, Args: cobra.NoArgs,
		Example: "  pdctl usage\n  pdctl usage --proxy http://10.0.0.1:8000 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if key, err = s.AdminKey(key); err != nil {
				return err
			}
			asked := slices.Compact(slices.Sorted(slices.Values(proxies))) // with --watch this runs again, and the proxies may have changed
			if len(asked) == 0 {
				if asked, err = s.ProxyURLs(cmd.Context()); err != nil {
					return err
				}
			}
			u, err := ask(cmd.Context(), s, asked, key)
			if err != nil {
				return err
			}
			return printUsage(s, u)
		},
	}
	cmd.Flags().StringArrayVar(&proxies, "proxy", nil, "URL of a proxy, or of its --admin-listen if it has one; may be repeated (default: all proxies in etcd)")
	cmd.Flags().StringVar(&key, "admin-key", "", "admin key of the proxies; better set ADMIN_API_KEY")
	return cmd
}

// ask sums the counts of the proxies. It returns only errors of usage; Failed has the others.
func ask(ctx context.Context, s *session.Session, proxies []string, key string) (usage, error) {
	out, sums := usage{Keys: []instance.KeyUsage{}, Failed: map[string]string{}}, map[string]instance.KeyUsage{}
	for _, base := range proxies {
		var answer struct{ Keys []instance.KeyUsage }
		raw, err := s.AskProxy(ctx, base, "/usage", nil, http.Header{"X-Api-Key": {key}}, nil)
		if cli.IsWrong(err) {
			return out, err
		}
		if err == nil {
			err = json.Unmarshal(raw, &answer)
		}
		if err != nil {
			out.Failed[base] = err.Error()
			continue
		}
		out.Proxies++
		for _, one := range answer.Keys {
			sum := sums[one.Key]
			sum.Key = one.Key
			sum.Hour.Add(one.Hour)
			sum.InFlight += one.InFlight
			if one.Limits != nil {
				sum.Limits = one.Limits
			}
			sums[one.Key] = sum
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		out.Keys = append(out.Keys, sums[name])
	}
	return out, nil
}

func printUsage(s *session.Session, u usage) error {
	var err error
	if s.Out.Structured() {
		err = s.Out.Write(u)
	} else {
		t := output.NewTable("KEY", "REQUESTS", "REFUSED", "INPUT", "CACHED", "OUTPUT", "IN FLIGHT")
		for _, one := range u.Keys {
			t.AppendRow([]any{instance.Printable(one.Key, 64), one.Hour.Requests, one.Hour.Refused, one.Hour.Input, one.Hour.Cached, one.Hour.Output, one.InFlight})
		}
		err = s.Out.Println(t.Render())
	}
	for _, base := range slices.Sorted(maps.Keys(u.Failed)) {
		fmt.Fprintf(s.Out.Stderr, "%s: %s\n", instance.Printable(base, 200), u.Failed[base])
	}
	if err == nil && len(u.Failed) > 0 {
		err = fmt.Errorf("%d of %d proxies did not answer and are missing from the sums", len(u.Failed), len(u.Failed)+u.Proxies)
	}
	return err
}
