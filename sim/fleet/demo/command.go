// Package demo implements the program demo, which starts a whole fleet on one
// machine without a GPU, sends requests, kills engines and etcd members, and
// checks that requests still succeed.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

const help = `demo starts a fleet on free ports of 127.0.0.1, with temporary data: proxies,
an etcd, two prefill and two decode engines (simulated, no GPU), and an agent for
each engine. It streams a chat request, shows which instances served it, kills a
decode engine, and shows that requests still succeed. With several proxies it
drains an instance at one of them and checks that the others follow. With three
or five etcd members it kills one of them.

Then the fleet runs until Ctrl-C, so that you can try commands. With --keep, demo
first restarts what it killed. With --once it exits after the tour, with exit
code 0 if every step passed.`

// maxProxies bounds --proxies.
const maxProxies = 9

type options struct {
	proxies   int
	etcd      int // members with a process each; 0: the first proxy embeds etcd
	keep      bool
	once      bool
	bin       string
	connector string
}

// Run runs the program. It returns 0 if the tour succeeded, 1 if a step failed,
// and 2 if the command line is wrong.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	cmd := &cobra.Command{
		Use: "demo", Short: "a tour of pdmesh on this machine", Long: help,
		Args:              cli.NoArgs,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return demo(cmd.Context(), o, stdout)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.IntVar(&o.proxies, "proxies", 1, "number of proxies, 1 to 9")
	fs.IntVar(&o.etcd, "etcd", 0, "number of etcd members, each in its own process: 1, 3 or 5; 0 embeds etcd in the first proxy")
	fs.BoolVar(&o.keep, "keep", false, "after the tour, restart what it killed and keep the fleet running until Ctrl-C")
	fs.BoolVar(&o.once, "once", false, "exit after the tour")
	fs.StringVar(&o.connector, "connector", "nixl", "KV transfer of the engines: "+strings.Join(connector.Names(), ", ")+"; moriio is moriio_write")
	fs.StringVar(&o.bin, "bin", "", "directory of the other programs (default: the directory of this one)")
	return cli.Run(ctx, cmd, args, stdout, stderr)
}

// check validates the options and fills in their defaults.
func (o *options) check() error {
	switch {
	case o.proxies < 1 || o.proxies > maxProxies:
		return cli.Wrongf("invalid --proxies %d: must be between 1 and %d", o.proxies, maxProxies)
	case !slices.Contains([]int{0, 1, 3, 5}, o.etcd):
		return cli.Wrongf("invalid --etcd %d: must be 1, 3 or 5, or 0 for an etcd embedded in the first proxy", o.etcd)
	case o.keep && o.once:
		return cli.Wrongf("--keep and --once exclude each other")
	}
	if o.connector == connector.MoRIIO {
		o.connector = "moriio_write"
	}
	d, err := connector.New(o.connector)
	if err != nil {
		return cli.Wrongf("--connector: %w", err)
	}
	o.connector = d.Name() // simulated engines do not know the class names of vLLM
	if err := fleet.FillBinDir(&o.bin); err != nil {
		return err
	}
	if o.etcd > 0 {
		if _, err := os.Stat(filepath.Join(o.bin, "etcd")); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("--etcd %d: no program etcd in %s; it comes with make build and with the archive of a release, not with the Debian package", o.etcd, o.bin)
		}
	}
	return nil
}
