package session

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// completeLimit bounds the time of a completion.
const completeLimit = time.Second

// Completes adds shell completion of a command's arguments: the role, then addresses that are
// in etcd; or role/address, once a slash is typed. roles are the roles that the command accepts.
func (s *Session) Completes(cmd *cobra.Command, roles ...instance.Role) *cobra.Command {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) (out []string, _ cobra.ShellCompDirective) {
		named, role := strings.Contains(strings.Join(args, "")+typed, "/"), instance.Both
		if len(args) == 0 && !named {
			for _, r := range roles {
				out = append(out, string(r))
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		}
		var err error
		if !named {
			role, err = instance.ParseRoles(args[0])
		}
		if err != nil || s.settle(cmd) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, in := range s.instances(cmd.Context()) {
			if _, err := instance.ParseAddress(in.Address); err != nil {
				continue // a key that was written by hand may have any address
			}
			name := in.Address
			if named {
				name = in.Key.String()
			}
			if (role == instance.Both || in.Role == role) && !slices.Contains(args, name) && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// instances returns all instances in etcd; none if it does not answer within completeLimit.
func (s *Session) instances(ctx context.Context) []*instance.Instance {
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	s.Timeout = completeLimit // bounds the authentication of a user
	c, err := s.dial()
	if err != nil {
		return nil
	}
	defer c.Close()
	snap, err := c.Store.Reader.Snapshot(ctx)
	if err != nil {
		return nil
	}
	return snap.All()
}
