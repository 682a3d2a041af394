package command

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/bench/ground"
	"github.com/pdmesh/pdmesh/bench/scale"
	"github.com/pdmesh/pdmesh/internal/cli"
)

// scaleCommand is the subcommand scale.
func scaleCommand(ctx context.Context, stdout io.Writer) *cobra.Command {
	o := scale.Options{Progress: stdout}
	var doc string
	c := &cobra.Command{
		Use: "scale", Short: "change the membership of a large fleet under load", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if o.Instances < 40 || o.Proxies < 1 || o.Changes < 1 || o.Duration < 5*time.Second || o.Rate < 1 {
				return cli.Wrongf("use at least 40 --instances, 1 of --proxies, --changes and --rate, and 5s for --duration")
			}
			if o.Changes > 10*o.Instances {
				return cli.Wrongf("--changes %d: use at most 10 for each instance", o.Changes)
			}
			r, err := scale.Run(ctx, o)
			if r == nil {
				return err
			}
			_, _ = io.WriteString(stdout, r.Table())
			if doc != "" && err == nil {
				err = ground.ReplacePart(doc, "scale", r.Table())
			}
			return err
		},
	}
	fs := c.Flags()
	fs.StringVar(&o.BinDir, "bin", "bin", "directory with our programs")
	fs.IntVar(&o.Instances, "instances", 1000, "number of instances, half of them prefill; at least 40")
	fs.IntVar(&o.Proxies, "proxies", 8, "number of proxies")
	fs.IntVar(&o.Changes, "changes", 2000, "changes of the membership per minute; at most 10 for each instance")
	fs.DurationVar(&o.Duration, "duration", 5*time.Minute, "duration of the changes; at least 5s")
	fs.IntVar(&o.Rate, "rate", 20, "requests per second, to all proxies together")
	fs.StringVar(&doc, "doc", "", "document for the table")
	return c
}
