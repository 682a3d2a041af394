package member

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const orderHelp = `%s decides what every proxy does with the keys that it kept from a former etcd.

When etcd is wiped, or another one takes its place, proxies keep the static instances,
overrides and documents without a time limit that the new etcd lacks, and show them in
/status. "pdctl restore" makes the proxies write these to the new etcd, unless it has a
value of its own. "pdctl forget" makes the proxies drop them. Until then, commands that
would replace a kept override (such as weight, drain, undrain and remove) are refused.

It works on the instances given, or on everything with --all. pdctl does not wait for
the proxies; their /status shows the result.`

// Restore returns the command restore.
func Restore(s *session.Session) *cobra.Command {
	return orderCommand(s, schema.OrderRestore, "write what a wiped etcd has lost back from the proxies")
}

// Forget returns the command forget.
func Forget(s *session.Session) *cobra.Command {
	return orderCommand(s, schema.OrderForget, "make proxies drop what a wiped etcd has lost")
}

func orderCommand(s *session.Session, verb, short string) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: verb + " --all | ROLE/HOST:PORT...", Short: short, Long: fmt.Sprintf(orderHelp, verb),
		Example: "  pdctl " + verb + " --all\n  pdctl " + verb + " prefill 10.0.0.7:8100",
		RunE: func(cmd *cobra.Command, args []string) error {
			var keys []instance.Key
			switch {
			case all && len(args) > 0:
				return cli.Wrongf("--all and instances exclude each other")
			case all:
			case len(args) == 0:
				return cli.Wrongf("missing instances, or --all")
			default:
				var err error
				if keys, err = s.Named(cmd.Context(), args, session.Fresh); err != nil {
					return err
				}
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error { return order(cmd.Context(), s, conn, verb, keys) })
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "everything that proxies keep")
	return s.Audits(cmd)
}

func order(ctx context.Context, s *session.Session, conn *session.Conn, verb string, keys []instance.Key) error {
	proxies, err := conn.Store.Reader.Proxies(ctx) // first: an error means that nothing is written
	if err != nil {
		return err
	}
	if err := conn.Store.Kept.Order(ctx, verb, keys, s.Reason); err != nil {
		return err
	}
	switch {
	case s.Out.Structured():
		return s.WriteChange(map[string]any{"proxies": len(proxies)})
	case s.Dry.On:
		return s.Out.Println(fmt.Sprintf("would notify %s: %s the kept keys", output.Proxies(len(proxies)), verb))
	}
	return s.Out.Println(fmt.Sprintf("%s notified: %s the kept keys; see /status of each", output.Proxies(len(proxies)), verb))
}
