package pdctl

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const allowHelp = `allow lifts the removal of instances, and adds nothing.

What "pdctl remove" took out stays out whatever registers at its address. After
allow the agent that was turned away registers again by itself, within seconds,
with its connector, its lease and its drain; a node that puts its own key does
so. "pdctl add" lifts a removal too, but puts a static instance in its place:
then that is what proxies use, and the agent stands back.

To give an instance that was removed and then added back to its agent, remove
it and allow it. Allowing what is not removed is an error (exit 1).`

func (a *app) allowCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "allow prefill|decode host:port...", Short: "lift removals, so that agents register again", Long: allowHelp,
		Example: "  pdctl allow decode 10.0.0.8:8200 10.0.0.9:8200 --reason \"disks replaced\"",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := a.keys(args)
			if err != nil {
				return err
			}
			return a.allow(cmd.Context(), keys, reason)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit trail")
	return cmd
}

func (a *app) allow(ctx context.Context, keys []instance.Key, reason string) error {
	s, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	results := make([]result, 0, len(keys))
	for _, k := range keys {
		r := result{Role: k.Role, Address: k.Address}
		removed, err := s.store.Allow(ctx, k, reason)
		switch {
		case err != nil:
			r = r.failed("%w", err)
		case !removed:
			r = r.failed("it is not removed; nothing was done")
		default:
			r.Outcome, r.line = "allowed", "allowed; used again as soon as it registers"
		}
		results = append(results, r)
		a.line(r)
	}
	return a.finish(results)
}
