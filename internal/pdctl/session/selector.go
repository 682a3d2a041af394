package session

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
)

const selectorUsage = "only instances that match, in kubectl's notation: key=value, key!=value, key in (a,b), key notin (a,b), key, !key, separated by commas; " +
	"key is role, model, state, or the name of a label (label:NAME for a label with one of these names); if repeated, all must match"

// Selects adds the flag --selector to a command.
func (s *Session) Selects(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringArrayVarP(&s.selectors, "selector", "l", nil, selectorUsage)
	_ = cmd.RegisterFlagCompletionFunc("selector", s.completeSelector) // the flag is there
	return cmd
}

func (s *Session) parseSelectors() (out instance.Selector, err error) {
	for _, text := range s.selectors {
		one, err := instance.ParseSelector(text)
		if err != nil {
			return nil, cli.Wrongf("--selector %q: %w", instance.Printable(text, 80), err)
		}
		out = append(out, one...)
	}
	return out, nil
}

// NamedOrSelected checks the number of arguments after the flags are parsed: instances, or a role
// or nothing with --selector; more is the number of further arguments.
func (s *Session) NamedOrSelected(more int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(s.selectors) > 0 {
			if len(args) < more || len(args) > 1+more {
				return fmt.Errorf("with --selector, name only a role: %q", args)
			}
			return nil
		}
		return cobra.MinimumNArgs(1+more)(cmd, args)
	}
}

// NoMatch returns the error about a selector without a match; what is a role with a space, or "".
func (s *Session) NoMatch(what string, snap *instance.Snapshot) error {
	selected := instance.Printable(strings.Join(s.selectors, " "), 200)
	return fmt.Errorf("no %sinstance matches --selector %s%s; see pdctl list", strings.TrimLeft(what, " "), selected, instance.Printable(s.Selector.SetHint(snap), 200))
}

// WithChosen connects to etcd and calls do with the instances that a command changes: those named,
// or those that match the selector.
func (s *Session) WithChosen(ctx context.Context, args []string, accept Accept, do func(*Conn, []instance.Key) error) error {
	keys, err := s.chosen(ctx, args, accept)
	if err != nil {
		return err
	}
	return s.With(ctx, func(conn *Conn) error { return do(conn, keys) })
}

// chosen returns the instances that are named, or that match the selector. For the role "both",
// both entries of an engine have to match.
func (s *Session) chosen(ctx context.Context, args []string, accept Accept) ([]instance.Key, error) {
	if len(s.Selector) == 0 {
		return s.Named(ctx, args, BothRoles|accept)
	}
	roles := instance.Roles()
	if len(args) > 0 {
		role, err := instance.ParseRoles(args[0])
		if err != nil {
			return nil, cli.Wrong(err)
		}
		roles = []instance.Role{role}
	}
	c, err := s.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	snap, _, err := s.Seen(ctx, c)
	if err != nil {
		return nil, err
	}
	fit := map[instance.Key]bool{}
	var order []string
	for _, in := range s.Selector.Filter(snap).All() {
		if !fit[in.Key] {
			order = append(order, in.Address)
		}
		fit[in.Key] = true
	}
	slices.Sort(order)
	order = slices.Compact(order)
	var keys []instance.Key
	for _, role := range roles {
		for _, address := range order {
			k := instance.Key{Role: role, Address: address}
			if !slices.ContainsFunc(k.Each(), func(one instance.Key) bool { return !fit[one] }) {
				keys = append(keys, k)
			}
		}
	}
	if len(keys) == 0 {
		return nil, s.NoMatch(strings.Join(args, "")+" ", snap)
	}
	return keys, nil
}

// completeSelector returns completions: the keys, and the values that instances in etcd have.
func (s *Session) completeSelector(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	key, _, value := strings.Cut(typed, "=")
	values := map[string]bool{}
	switch {
	case value && key == instance.ByRole:
		for _, r := range instance.Roles() {
			values[key+"="+string(r)] = true
		}
	case value && key == instance.ByState:
		for _, state := range instance.SelectorStates() {
			values[key+"="+state] = true
		}
	case s.settle(cmd) != nil:
	default:
		if !value {
			values[instance.ByRole+"="], values[instance.ByModel+"="], values[instance.ByState+"="] = true, true, true
		}
		for _, in := range s.instances(cmd.Context()) {
			if value && key == instance.ByModel {
				for _, m := range in.Record.Models {
					values[key+"="+m] = true
				}
			}
			for name, is := range in.Record.Labels {
				if name == instance.ByRole || name == instance.ByModel || name == instance.ByState {
					name = instance.LabelPrefix + name
				}
				if !value {
					values[name+"="] = true
				} else if name == key {
					values[name+"="+is] = true
				}
			}
		}
	}
	var out []string
	for v := range values {
		if strings.HasPrefix(v, typed) && instance.Printable(v, 0) == v && !strings.ContainsAny(v, "\t ") {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	directive := cobra.ShellCompDirectiveNoFileComp
	if !value {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return out, directive
}
