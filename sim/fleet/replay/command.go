// Package replay is the program replay: it sends a recorded trace through a whole fleet
// on this machine and checks every answer to the last byte.
package replay

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/connector"
)

const help = `replay starts proxies (the first embeds etcd), simulated engines and their
agents as processes on this machine, and sends them the requests of a trace at
the recorded times, divided by --speed, over all proxies in turn.

The trace has one JSON object a line: timestamp (ms), input_length,
output_length (tokens) and hash_ids, the ids of the prompt's 512-token blocks.
Prompts are built from the block ids, equal blocks give equal tokens.

The engines' text is a function of the prompt, so every answer is compared with
the one right answer: text, token counts, finish reason, usage, the end of the
stream. The exit code is 0 only if all were complete and right.`

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
	verbose     bool
}

// Run is the whole program: 0 when every answer was right, 1 when not or when
// something failed, 2 for a wrong command line.
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
			return replay(cmd.Context(), o, stdout, stderr)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&o.trace, "trace", "", "file with the trace")
	fs.IntVar(&o.limit, "limit", 0, "send only the first that many requests; 0 sends all")
	fs.Float64Var(&o.speed, "speed", 20, "how many times faster than recorded")
	fs.IntVar(&o.proxies, "proxies", 2, "number of proxies")
	fs.IntVar(&o.prefill, "prefill", 2, "number of prefill engines")
	fs.IntVar(&o.decode, "decode", 2, "number of decode engines")
	fs.StringVar(&o.connector, "connector", "nixl", "KV transfer of the engines: "+strings.Join(connector.Names(), ", "))
	fs.DurationVar(&o.ttft, "ttft", 5*time.Millisecond, "time a prefill engine takes for a prompt")
	fs.DurationVar(&o.itl, "itl", time.Millisecond, "time an engine takes between two tokens")
	fs.IntVar(&o.maxInFlight, "max-in-flight", 256, "requests at once; what is due beyond that waits")
	fs.DurationVar(&o.timeout, "timeout", 5*time.Minute, "for one request")
	fs.StringVar(&o.bin, "bin", "", "directory of the programs (default: where this one is)")
	fs.BoolVarP(&o.verbose, "verbose", "v", false, "show the output of all processes")
	return cli.Run(ctx, cmd, args, stdout, stderr)
}

func (o *options) check() error {
	switch {
	case o.trace == "":
		return cli.Wrongf("--trace is missing: name the file with the recorded requests")
	case o.limit < 0:
		return cli.Wrongf("--limit %d is negative", o.limit)
	case !(o.speed > 0 && o.speed <= 1e6):
		return cli.Wrongf("--speed %g: use a number above 0, 1 is as recorded", o.speed)
	case o.proxies < 1 || o.prefill < 1 || o.decode < 1 || o.proxies+o.prefill+o.decode > 500:
		return cli.Wrongf("--proxies, --prefill and --decode must be at least 1 and not hundreds")
	case o.maxInFlight < 1:
		return cli.Wrongf("--max-in-flight must be at least 1")
	case o.timeout <= 0:
		return cli.Wrongf("--timeout must be above 0")
	}
	if o.bin == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the other programs: %w (name their directory with --bin)", err)
		}
		o.bin = filepath.Dir(self)
	}
	return nil
}
