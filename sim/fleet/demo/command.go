// Package demo is the program demo: a whole fleet on one machine, without a GPU. It
// starts it, asks it something, breaks a part of it, and shows that it goes on.
package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/connector"
)

const help = `demo starts a proxy with its own embedded etcd, two prefill and two decode
engines (simulated, no GPU) and an agent beside each, all on free ports of
127.0.0.1 with temporary data. It streams a chat request through them, shows
which pair served it, kills a decode engine and shows that requests go on.

Then it stays up, so that one can try things, until Ctrl-C. With --once it ends
after the tour, with exit code 0 if every step went as it should.`

type options struct {
	once      bool
	bin       string
	connector string
	verbose   bool
}

// Run is the whole program: 0 when the tour went well, 1 when a step failed,
// 2 for a wrong command line.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	cmd := &cobra.Command{
		Use: "demo", Short: "a tour of pdmesh on this machine", Long: help,
		Args:              cli.NoArgs,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.connector == connector.MoRIIO {
				o.connector = "moriio_write"
			}
			d, err := connector.New(o.connector)
			if err != nil {
				return cli.Wrongf("--connector: %w", err)
			}
			o.connector = d.Name() // the engines know no class of vLLM
			if o.bin == "" {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("find the other programs: %w (name their directory with --bin)", err)
				}
				o.bin = filepath.Dir(self)
			}
			return demo(cmd.Context(), o, stdout, stderr)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&o.once, "once", false, "end after the tour")
	fs.StringVar(&o.connector, "connector", "nixl", "KV transfer of the engines: "+strings.Join(connector.Names(), ", ")+"; moriio is moriio_write")
	fs.StringVar(&o.bin, "bin", "", "directory of the programs (default: where this one is)")
	fs.BoolVarP(&o.verbose, "verbose", "v", false, "show the output of all processes")
	return cli.Run(ctx, cmd, args, stdout, stderr)
}
