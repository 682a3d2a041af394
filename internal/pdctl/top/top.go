// Package top implements pdctl top: a live view of the fleet in a terminal.
package top

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const help = `top shows the instances of each role with their state, load and latencies, and the proxies.
It reads etcd, and /status and /metrics of every proxy. Without a terminal, use --once or
-o json.

  IN FLIGHT, WAITING  requests, and tokens of prompts that are not computed yet, of all
                      proxies
  KV                  share of the engine's KV cache in use
  HITS                share of the prompts' tokens that a prefill instance had in its cache
  TTFT                median time to the first token, of the instance that computed the prompt
  PER TOKEN           median of the mean time per token of each stream
  REQS                requests that the instance was picked for, with their retries

Requests, latencies and hit rates are those of the last minute; in the first frame and with
--once, those since the proxies started. Latencies are estimated from histograms: "pdctl
doctor" compares instances more exactly. "-" is not known. A proxy whose metrics cannot be
read counts only with its load digest in etcd; one of an older version counts no requests.

Keys: up, down (or k, j) select an instance; s changes the order, r reverses it; / filters
by text; d drains or undrains, c cordons or uncordons, w sets the weight, R keeps an engine
of both roles in one of them; q quits. A change shows its effect and asks for a
confirmation. With --dry-run it is not written.`

// options are the flags of top.
type options struct {
	once, reverse bool
	sort          string
	every         time.Duration
}

// Command returns the command top.
func Command(s *session.Session) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "top", Short: "show the fleet in the terminal, live", Long: help,
		Example: "  pdctl top\n  pdctl top --once --sort-by in-flight\n  pdctl top --once --selector role=decode\n" +
			"  pdctl top -o json | jq '.instances[] | {address, in_flight, ttft_p50_seconds}'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), s, &o, cmd.InOrStdin()) },
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.once, "once", false, "print one frame and end")
	fs.StringVar(&o.sort, "sort-by", "address", "order of the instances of a role: "+strings.Join(sorts(), ", ")+"; figures have the largest first")
	fs.BoolVar(&o.reverse, "reverse", false, "reverse this order")
	settings.DurationVar(fs, &o.every, "interval", 2*time.Second, "time between two frames, 500ms to 1m")
	return cmd
}

func run(ctx context.Context, s *session.Session, o *options, in io.Reader) error {
	out, file := s.Out.Stdout.(*os.File)
	switch o.once = o.once || s.Out.Structured(); {
	case !slices.Contains(sorts(), o.sort):
		return cli.Wrongf("--sort-by %q: use one of %s", o.sort, strings.Join(sorts(), ", "))
	case o.every < time.Second/2 || o.every > time.Minute:
		return cli.Wrongf("--interval %s: must be from 500ms to 1m", o.every)
	case !o.once && (!file || !isatty.IsTerminal(out.Fd())):
		return cli.Wrongf("top needs a terminal: use --once or -o json")
	}
	return s.With(ctx, func(conn *session.Conn) error {
		client, err := s.Proxies.Client()
		if err != nil {
			return err
		}
		c := &collector{s: s, conn: conn, client: client}
		defer c.client.CloseIdleConnections()
		if !o.once {
			return live(ctx, c, o, in, out)
		}
		f, err := c.collect(ctx)
		if err != nil {
			return err
		}
		f.Instances = f.arrange(o.sort, o.reverse, "")
		if s.Out.Structured() {
			return s.Out.Write(f)
		}
		return s.Out.Println(fmt.Sprintf("%s\n\n%s\n\n%s", strings.Join(f.head(), "\n"), strings.Join(instanceLines(f.Instances), "\n"), f.period()))
	})
}
