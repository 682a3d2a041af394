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
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		var out []string
		if named := strings.Contains(strings.Join(args, "")+typed, "/"); named && s.settle(cmd) == nil {
			for _, in := range s.instances(cmd.Context()) {
				if _, err := instance.ParseAddress(in.Address); err == nil && !slices.Contains(args, in.Key.String()) && slices.Contains(roles, in.Role) {
					out = append(out, in.Key.String())
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		}
		if len(args) == 0 {
			for _, r := range roles {
				out = append(out, string(r))
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		}
		role, err := instance.ParseRoles(args[0])
		if err != nil || s.settle(cmd) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		given := map[string]bool{}
		for _, arg := range args[1:] {
			given[arg] = true
		}
		for _, address := range s.knownAddresses(cmd.Context(), role) {
			if !given[address] {
				out = append(out, address)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// knownAddresses returns the addresses of a role in etcd; none if it does not answer within
// completeLimit.
func (s *Session) knownAddresses(ctx context.Context, role instance.Role) []string {
	var out []string
	seen := map[string]bool{}
	for _, in := range s.instances(ctx) {
		if _, err := instance.ParseAddress(in.Address); err != nil {
			continue // a key that was written by hand may have any address
		}
		if (in.Role == role || role == instance.Both) && !seen[in.Address] {
			seen[in.Address] = true
			out = append(out, in.Address)
		}
	}
	return out
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
