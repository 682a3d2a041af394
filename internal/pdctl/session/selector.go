package session

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
)

// Selector picks instances by what is known of them: all of its terms must fit.
type Selector []term

// term is key=value. key is byRole, byModel or byState, else the name of a label.
type term struct{ key, value string }

// The keys that are not names of labels. A label that has such a name is written label:NAME.
const (
	byRole  = "role"
	byModel = "model"
	byState = "state"

	labelPrefix = "label:"
)

// states are the values of state=: those of records, of views and of intents.
func states() []string {
	return []string{
		string(instance.Starting), string(instance.Ready), string(instance.Draining), string(instance.Down),
		string(instance.Pending), string(instance.Unverified), string(instance.Rejected),
		string(instance.Drain), string(instance.Cordon), string(instance.Removed),
	}
}

// Selectors are what --selector says, as it was given.
type Selectors []string

const selectorUsage = "only instances that match key=value; key is role, model, state, or the name of a label (label:NAME for a label with one of these names); if repeated, all must match"

// Selects gives a command the flag.
func (s *Session) Selects(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringArrayVarP((*[]string)(&s.Selectors), "selector", "l", nil, selectorUsage)
	_ = cmd.RegisterFlagCompletionFunc("selector", s.completeSelector) // the flag is there
	return cmd
}

// Parse reads them.
func (l *Selectors) Parse() (Selector, error) {
	var out Selector
	for _, text := range *l {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" || key == labelPrefix {
			return nil, cli.Wrongf("--selector %q: write key=value, e.g. state=down or a label such as rack=3", instance.Printable(text, 80))
		}
		switch key {
		case byRole:
			if _, err := instance.ParseRole(value); err != nil {
				return nil, cli.Wrongf("--selector %s: %w", key, err)
			}
		case byState:
			if !slices.Contains(states(), value) {
				return nil, cli.Wrongf("--selector state=%q: use one of %s", instance.Printable(value, 40), strings.Join(states(), ", "))
			}
		case byModel:
			if value == "" {
				return nil, cli.Wrongf("--selector model=: name a model")
			}
		}
		out = append(out, term{key, value})
	}
	return out, nil
}

// NamedOrSelected checks the number of arguments, once the flags are read: a role and
// addresses, or a role and --selector, and behind them as many as more says.
func (l *Selectors) NamedOrSelected(more int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(*l) > 0 {
			return cobra.ExactArgs(1+more)(cmd, args)
		}
		return cobra.MinimumNArgs(2+more)(cmd, args)
	}
}

// fits tells whether an instance has all that is asked for.
func (l Selector) fits(in *instance.Instance) bool {
	return !slices.ContainsFunc(l, func(t term) bool { return !t.fits(in) })
}

func (t term) fits(in *instance.Instance) bool {
	switch t.key {
	case byRole:
		return string(in.Role) == t.value
	case byState:
		return output.Effective(in) == t.value
	case byModel: // the last part of a name is enough, as for --model
		return (&instance.Facts{Models: in.Record.Models}).Serves(t.value, false)
	}
	value, ok := in.Record.Labels[strings.TrimPrefix(t.key, labelPrefix)]
	return ok && value == t.value
}

// Filter keeps the instances that fit.
func (l Selector) Filter(snap *instance.Snapshot) *instance.Snapshot {
	if len(l) == 0 {
		return snap
	}
	var keep []*instance.Instance
	for _, in := range snap.All() {
		if l.fits(in) {
			keep = append(keep, in)
		}
	}
	return instance.NewSnapshot(snap.Revision, keep)
}

// ChosenKeys are the instances that a command changes: those named, or those that fit the
// selector. For the role "both", both entries of an engine have to fit.
func (s *Session) ChosenKeys(ctx context.Context, args []string) ([]instance.Key, error) {
	role, err := instance.ParseRoles(args[0])
	if err != nil {
		return nil, cli.Wrong(err)
	}
	sel, err := s.Selectors.Parse()
	if err != nil {
		return nil, err
	}
	if len(sel) == 0 {
		return Addresses(role, args[1:])
	}
	c, err := s.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	snap, err := c.Store.Reader.Snapshot(ctx)
	if err != nil {
		return nil, s.Hint(err)
	}
	proxies, err := c.Store.Reader.Proxies(ctx)
	if err != nil {
		return nil, s.Hint(err)
	}
	fit := map[instance.Key]bool{}
	var order []string
	for _, in := range sel.Filter(SeenByProxies(snap, proxies)).All() {
		if !fit[in.Key] {
			order = append(order, in.Address)
		}
		fit[in.Key] = true
	}
	slices.Sort(order)
	var keys []instance.Key
	for _, address := range slices.Compact(order) {
		k := instance.Key{Role: role, Address: address}
		if !slices.ContainsFunc(k.Each(), func(one instance.Key) bool { return !fit[one] }) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("no %s instance matches --selector %s; see pdctl list", role, instance.Printable(strings.Join(s.Selectors, " "), 200))
	}
	return keys, nil
}

// completeSelector offers a shell the keys, and the values that instances in etcd have.
func (s *Session) completeSelector(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	key, _, value := strings.Cut(typed, "=")
	values := map[string]bool{}
	switch {
	case value && key == byRole:
		for _, r := range instance.Roles() {
			values[key+"="+string(r)] = true
		}
	case value && key == byState:
		for _, state := range states() {
			values[key+"="+state] = true
		}
	case s.settle(cmd) != nil:
	default:
		if !value {
			values[byRole+"="], values[byModel+"="], values[byState+"="] = true, true, true
		}
		for _, in := range s.instances(cmd.Context()) {
			if value && key == byModel {
				for _, m := range in.Record.Models {
					values[key+"="+m] = true
				}
			}
			for name, is := range in.Record.Labels {
				if name == byRole || name == byModel || name == byState {
					name = labelPrefix + name
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
