package intent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const weightHelp = `weight sets the share of its role's requests that an instance gets.

A weight is a whole number from 0 to 10000. The share of an instance is its weight divided by
the sum of its role, of the instances that serve the same model: one with 300 gets three times
as many requests as one with 100, the default; 50 next to one with 100 is a third. With 0 it gets
no new requests, even if it is the last one of its role; requests that run there go on. All
policies use weights.

The weight is stored in etcd, separately from the instance's record, and takes precedence
over the weight in it. It stays when the instance leaves and returns. "default" undoes it;
with --for it ends after that time.
A weight for an instance that is not in etcd is an error (exit 1).`

// Weight returns the command weight.
func Weight(s *session.Session) *cobra.Command {
	var f intentFlags
	cmd := &cobra.Command{
		Use: "weight [ROLE/]HOST:PORT... N|default", Short: "set the share of requests that instances get", Long: weightHelp,
		Example: "  pdctl weight decode 10.0.0.8:8200 300 --reason \"more memory\"\n  pdctl weight prefill 10.0.0.7:8100 10.0.0.8:8100 0 --for 1h\n  pdctl weight decode 10.0.0.8:8200 default",
		Args:    s.NamedOrSelected(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			if err := f.check(); err != nil {
				return err
			}
			var weight *int
			if args[last] != "default" {
				n, err := strconv.Atoi(args[last])
				if err != nil {
					return cli.Wrongf("invalid weight %q after the addresses: must be a whole number from 0 to %d, or \"default\"", instance.Printable(args[last], 80), instance.MaxWeight)
				}
				if !instance.ValidWeight(n) {
					return invalidWeight(args[last])
				}
				weight = &n
			} else if f.options.For > 0 {
				return cli.Wrongf("--for needs a weight, and cannot be used with default")
			}
			return s.WithChosen(cmd.Context(), args[:last], 0, func(conn *session.Conn, keys []instance.Key) error {
				return weigh(cmd.Context(), s, conn, keys, weight, f.options)
			})
		},
	}
	f.add(cmd)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
			if n := unknown.GetSpecifiedShortnames(); n != "" && strings.Trim(n, "0123456789") == "" {
				return invalidWeight("-" + n) // pflag takes it for a flag
			}
		}
		return cmd.Root().FlagErrorFunc()(cmd, err)
	})
	return cmd
}

func invalidWeight(text string) error {
	return cli.Wrongf("invalid weight %s: must be between 0 and %d", instance.Printable(text, 80), instance.MaxWeight)
}

// weigh sets a weight override, or removes it if n is nil.
func weigh(ctx context.Context, s *session.Session, conn *session.Conn, keys []instance.Key, n *int, options store.IntentOptions) error {
	if n != nil && *n == 0 {
		if err := s.Confirm(ctx, conn, keys); err != nil {
			return err
		}
	}
	results, _ := apply(s, keys, func(k instance.Key) (store.IntentResult, error) {
		return conn.Store.Intents.SetWeight(ctx, k, n, options)
	}, func(r *session.Result, _ store.IntentResult) {
		switch {
		case n == nil:
			r.Outcome, r.Text = "lifted", "weight override removed"
		case options.For > 0:
			r.Outcome, r.Text = "weighted", fmt.Sprintf("weight %d for %s", *n, options.For)
		default:
			r.Outcome, r.Text = "weighted", fmt.Sprintf("weight %d", *n)
		}
	})
	return s.Finish(results)
}
