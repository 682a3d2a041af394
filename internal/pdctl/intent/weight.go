package intent

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const weightHelp = `weight sets the share of its role's requests that an instance gets.

An instance with 300 gets three times as many requests as one with 100, the default. With
0 it gets no new requests, even if it is the last one of its role; requests that run there
go on. All policies use weights.

The weight is stored in etcd, separately from the instance's record, and takes precedence
over the weight in it. It stays when the instance leaves and returns. "default" undoes it;
with --for it ends after that time.
A weight for an instance that is not in etcd is an error (exit 1).`

// Weight makes the command weight.
func Weight(s *session.Session) *cobra.Command {
	var f intentFlags
	cmd := &cobra.Command{
		Use: "weight prefill|decode|both host:port... N|default", Short: "set the share of requests that instances get", Long: weightHelp,
		Example: "  pdctl weight decode 10.0.0.8:8200 300 --reason \"more memory\"\n  pdctl weight prefill 10.0.0.7:8100 10.0.0.8:8100 0 --for 1h\n  pdctl weight decode 10.0.0.8:8200 default",
		Args:    s.Selectors.NamedOrSelected(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			if err := f.check(); err != nil {
				return err
			}
			var weight *int
			if args[last] != "default" {
				n, err := strconv.Atoi(args[last])
				if err != nil || n < 0 {
					return cli.Wrongf("%q is not a weight: after the addresses, give a whole number of 0 or more, or \"default\"", instance.Printable(args[last], 80))
				}
				weight = &n
			} else if f.wish.For > 0 {
				return cli.Wrongf("--for needs a weight, and cannot be used with default")
			}
			keys, err := s.ChosenKeys(cmd.Context(), args[:last])
			if err != nil {
				return err
			}
			return weigh(cmd.Context(), s, keys, weight, f.wish)
		},
	}
	f.add(cmd)
	return cmd
}

// weigh sets a weight. nil lifts the one that was set.
func weigh(ctx context.Context, s *session.Session, keys []instance.Key, n *int, wish store.IntentOptions) error {
	conn, err := s.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	results, _ := apply(s, keys, func(k instance.Key) (store.IntentResult, error) {
		return conn.Store.Intents.SetWeight(ctx, k, n, wish)
	}, func(r *session.Result, _ store.IntentResult) {
		switch {
		case n == nil:
			r.Outcome, r.Text = "lifted", "its own weight applies"
		case wish.For > 0:
			r.Outcome, r.Text = "weighted", fmt.Sprintf("weight %d for %s", *n, wish.For)
		default:
			r.Outcome, r.Text = "weighted", fmt.Sprintf("weight %d", *n)
		}
	})
	return s.Finish(results)
}
