package pdctl

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const weightHelp = `weight says how much of its role's requests an instance should get.

An instance with 300 gets three times as many as one with 100, which is what an
instance has of which nothing is said. With 0 it gets no new ones, not even as the
last one of its role; what runs there is finished. Every policy of the proxies
goes by weights.

The weight is kept in etcd beside the instance's own record, wins over the one in
it, and stays when the instance leaves and comes back. "default" lifts it.
Saying it of what is not there is an error (exit 1).`

func (a *app) weightCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "weight prefill|decode host:port... N|default", Short: "say how much of the requests instances get", Long: weightHelp,
		Example: "  pdctl weight decode 10.0.0.8:8200 300 --reason \"more memory\"\n  pdctl weight prefill 10.0.0.7:8100 10.0.0.8:8100 0\n  pdctl weight decode 10.0.0.8:8200 default",
		Args:    cobra.MinimumNArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			keys, err := a.keys(args[:last])
			if err != nil {
				return err
			}
			if args[last] == "default" {
				return a.weigh(cmd.Context(), keys, nil, reason)
			}
			n, err := strconv.Atoi(args[last])
			if err != nil || n < 0 {
				return usagef("%q is no weight: give a whole number from 0 up, or \"default\", behind the addresses", instance.Printable(args[last], 80))
			}
			return a.weigh(cmd.Context(), keys, &n, reason)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit trail")
	return cmd
}

// weigh sets a weight, or lifts what was set with nil.
func (a *app) weigh(ctx context.Context, keys []instance.Key, n *int, reason string) error {
	s, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	results := make([]result, 0, len(keys))
	for _, k := range keys {
		r := result{Role: k.Role, Address: k.Address}
		known, err := s.store.SetWeight(ctx, k, n, discovery.Wish{Reason: reason})
		switch {
		case err != nil:
			r = r.failed("%w", err)
		case !known:
			r = r.failed("there is no such instance; see pdctl list")
		case n == nil:
			r.Outcome, r.line = "lifted", "its own weight is in force"
		default:
			r.Outcome, r.line = "weighted", fmt.Sprintf("weight %d", *n)
		}
		results = append(results, r)
		a.line(r)
	}
	return a.finish(results)
}
