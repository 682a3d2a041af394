// Command replay sends a recorded trace through a whole fleet on this machine
// and checks every answer to the last byte.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/version"
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

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// errUsage marks what is wrong with the command line.
var errUsage = errors.New("usage")

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

// run is the whole program: 0 when every answer was right, 1 when not or when
// something failed, 2 for a wrong command line.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	cmd := &cobra.Command{
		Use: "replay --trace FILE", Short: "send a recorded trace through a fleet on this machine", Long: help,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%w: unexpected argument %q", errUsage, args[0])
			}
			return nil
		},
		Version: version.String(), SilenceUsage: true, SilenceErrors: true,
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
	cmd.SetVersionTemplate("replay {{.Version}}\n")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	switch err := cmd.ExecuteContext(ctx); {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "replay: %v\nSee replay --help.\n", err)
		return 2
	default:
		fmt.Fprintf(stderr, "replay: %v\n", err)
		return 1
	}
}

func (o *options) check() error {
	switch {
	case o.trace == "":
		return fmt.Errorf("%w: --trace is missing: name the file with the recorded requests", errUsage)
	case o.limit < 0:
		return fmt.Errorf("%w: --limit %d is negative", errUsage, o.limit)
	case !(o.speed > 0 && o.speed <= 1e6):
		return fmt.Errorf("%w: --speed %g: use a number above 0, 1 is as recorded", errUsage, o.speed)
	case o.proxies < 1 || o.prefill < 1 || o.decode < 1 || o.proxies+o.prefill+o.decode > 500:
		return fmt.Errorf("%w: --proxies, --prefill and --decode must be at least 1 and not hundreds", errUsage)
	case o.maxInFlight < 1:
		return fmt.Errorf("%w: --max-in-flight must be at least 1", errUsage)
	case o.timeout <= 0:
		return fmt.Errorf("%w: --timeout must be above 0", errUsage)
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
