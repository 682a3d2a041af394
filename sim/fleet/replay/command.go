// Package replay implements the program replay, which sends a recorded trace
// through a fleet on this machine and compares every byte of every answer with the
// expected one.
package replay

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

const help = `replay starts proxies (the first embeds etcd), simulated engines and their
agents as processes on this machine. It sends the requests of a trace to all
proxies in turn, at the recorded times divided by --speed.

Each line of the trace is a JSON object: timestamp (ms), input_length and
output_length (tokens), and hash_ids, the ids of the 512-token blocks of the
prompt. Prompts are built from the block ids; equal ids are equal tokens.

The text of an engine is a function of the prompt, so every answer is compared
with the expected one: text, token counts, finish reason, usage, and the end of
the stream. The exit code is 0 only if all answers were complete and correct.`

type options struct {
	trace       string
	limit       int
	speed       float64
	bin         string
	proxies     int
	prefill     int
	decode      int
	connector   string
	ttft, itl   time.Duration
	maxInFlight int
	timeout     time.Duration
}

// Run runs the program. It returns 0 if every answer was correct, 1 if one was not
// or an error occurred, and 2 if the command line is wrong.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	cmd := &cobra.Command{
		Use: "replay --trace FILE", Short: "send a recorded trace through a fleet on this machine", Long: help,
		Args:              cli.NoArgs,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return replay(cmd.Context(), o, stdout)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&o.trace, "trace", "", "file of the trace")
	fs.IntVar(&o.limit, "limit", 0, "number of requests to send, from the start of the trace; 0 sends all")
	fs.Float64Var(&o.speed, "speed", 20, "factor of the recorded speed")
	fs.IntVar(&o.proxies, "proxies", 2, "number of proxies")
	fs.IntVar(&o.prefill, "prefill", 2, "number of prefill engines")
	fs.IntVar(&o.decode, "decode", 2, "number of decode engines")
	fs.StringVar(&o.connector, "connector", "nixl", "KV transfer of the engines: "+strings.Join(connector.Names(), ", "))
	fs.DurationVar(&o.ttft, "ttft", 5*time.Millisecond, "time of a prefill engine for a prompt")
	fs.DurationVar(&o.itl, "itl", time.Millisecond, "time of an engine between two tokens")
	fs.IntVar(&o.maxInFlight, "max-in-flight", 256, "limit of concurrent requests; further requests wait")
	fs.DurationVar(&o.timeout, "timeout", 5*time.Minute, "of one request")
	fs.StringVar(&o.bin, "bin", "", "directory of the other programs (default: the directory of this one)")
	return cli.Run(ctx, cmd, args, stdout, stderr)
}

// check validates the options and fills in their defaults.
func (o *options) check() error {
	switch {
	case o.trace == "":
		return cli.Wrongf("--trace is missing: set it to the file of the recorded requests")
	case o.limit < 0:
		return cli.Wrongf("invalid --limit %d: must not be negative", o.limit)
	case !(o.speed > 0 && o.speed <= 1e6):
		return cli.Wrongf("invalid --speed %g: must be above 0 and at most 1e6; 1 is the recorded speed", o.speed)
	case o.proxies < 1 || o.prefill < 1 || o.decode < 1 || o.proxies+o.prefill+o.decode > 500:
		return cli.Wrongf("invalid --proxies %d, --prefill %d or --decode %d: each must be at least 1, and their sum at most 500", o.proxies, o.prefill, o.decode)
	case o.maxInFlight < 1:
		return cli.Wrongf("invalid --max-in-flight %d: must be at least 1", o.maxInFlight)
	case o.timeout <= 0:
		return cli.Wrongf("invalid --timeout %s: must be above 0", o.timeout)
	}
	return fleet.FillBinDir(&o.bin)
}
