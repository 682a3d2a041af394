package control

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// target has the flags that select an agent.
type target struct{ socket, role, address string }

func (t *target) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&t.socket, "socket", os.Getenv("PD_SOCKET"), "the agent's control socket (default: that of --role and --address, or the only one here)")
	fs.StringVar(&t.role, "role", os.Getenv("PD_ROLE"), "role of the agent's instance")
	fs.StringVar(&t.address, "address", os.Getenv("PD_ADDRESS"), "address of the agent's instance")
}

// client returns a client of the agent. given reports whether a flag was set.
func (t *target) client(given func(flag string) bool) (*agentctl.Client, error) {
	if t.socket != "" && t.socket != SocketOff {
		return agentctl.NewClient(t.socket), nil
	}
	var k instance.Key
	one := (t.role == "") != (t.address == "")
	if one && (given("role") || given("address")) {
		return nil, cli.Wrongf("--role and --address: set both or none")
	}
	// If only one variable is set, the agent took the other value from the engine's command.
	if t.role != "" && !one {
		role, err := instance.ParseRoles(t.role)
		if err != nil {
			return nil, cli.Wrongf("--role: %w", err)
		}
		address, err := instance.ParseAddress(t.address)
		if err != nil {
			return nil, cli.Wrongf("--address: %w", err)
		}
		k = instance.Key{Role: role, Address: address}
	}
	path, err := agentctl.Find(k, os.Getenv)
	if err != nil {
		return nil, err
	}
	return agentctl.NewClient(path), nil
}

// Commands returns the subcommands that call a running agent.
func Commands() []*cobra.Command {
	return []*cobra.Command{statusCommand(), drainCommand(), healthCommand()}
}

// clientCommand returns a subcommand that calls one agent.
func clientCommand(use, short, long string, do func(ctx context.Context, cmd *cobra.Command, c *agentctl.Client) error) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := t.client(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return do(cmd.Context(), cmd, c)
		},
	}
	t.register(cmd)
	return cmd
}

func statusCommand() *cobra.Command {
	var output string
	cmd := clientCommand("status", "show the state of a running agent",
		"status shows the state of the engine and of its registration, for an agent on this machine.",
		func(ctx context.Context, cmd *cobra.Command, c *agentctl.Client) error {
			if output != "table" && output != "json" {
				return cli.Wrongf("-o %q: use table or json", instance.Printable(output, 40))
			}
			r, err := c.Status(ctx)
			if err != nil {
				return err
			}
			if output == "json" {
				return r.WriteJSON(cmd.OutOrStdout())
			}
			showReport(cmd.OutOrStdout(), r)
			return nil
		})
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

func drainCommand() *cobra.Command {
	var wait time.Duration
	cmd := clientCommand("drain", "make a running agent drain and exit",
		"drain does the same as SIGTERM: proxies send no new requests, the agent waits until the\nengine is idle, deregisters it and exits.",
		func(ctx context.Context, _ *cobra.Command, c *agentctl.Client) error {
			if wait < 0 {
				return cli.Wrongf("--wait: must not be negative")
			}
			if wait == 0 {
				return c.Drain(ctx)
			}
			r, err := c.Status(ctx)
			if err == nil {
				err = c.Drain(ctx)
			}
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			return c.AwaitEnd(ctx, r.ID)
		})
	settings.DurationVar(cmd.Flags(), &wait, "wait", 0, "how long to wait until the agent has exited; 0 returns at once")
	return cmd
}

func healthCommand() *cobra.Command {
	return clientCommand("health", "exit 0 if the instance is registered and its engine answers",
		"health is for supervisors, and for container health checks without a shell. It prints\none line. The exit code is 0 while the instance serves or drains, otherwise 1 with the\nreason, after three seconds at most. A registered instance stays healthy while etcd is\ndown. An engine that still loads is not healthy: set a start period for the check.",
		func(ctx context.Context, cmd *cobra.Command, c *agentctl.Client) error {
			r, err := c.Status(ctx)
			if err == nil {
				err = r.Health()
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", r.Phase, cmp.Or(r.ZMQRegister, string(r.Role)+"/"+r.Address))
			return nil
		})
}
