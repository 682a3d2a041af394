package pdctl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// selector picks instances by what is known of them: all of its terms must fit.
type selector []term

// term is key=value. key is one of selectorKeys, else the name of a label.
type term struct{ key, value string }

// The keys that are no labels. A label of such a name is written label:NAME.
const (
	byRole  = "role"
	byModel = "model"
	byState = "state"

	labelPrefix = "label:"
)

// states are those that a selector may ask for: the record's, and what a view or an
// operator makes of them.
func states() []string {
	return []string{
		string(instance.Starting), string(instance.Ready), string(instance.Draining), string(instance.Down),
		string(instance.Pending), string(instance.Unverified), string(instance.Rejected),
		string(instance.Drain), string(instance.Cordon), string(instance.Removed),
	}
}

const selectorUsage = "only what fits key=value, where key is role, model, state, or the name of a label (label:NAME if it is one of these); may be repeated, all must fit"

// selects gives a command the flag.
func (a *app) selects(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringArrayVarP(&a.selectors, "selector", "l", nil, selectorUsage)
	_ = cmd.RegisterFlagCompletionFunc("selector", a.completeSelector) // the flag is there
	return cmd
}

// selected reads --selector.
func (a *app) selected() (selector, error) {
	var out selector
	for _, text := range a.selectors {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" || key == labelPrefix {
			return nil, usagef("--selector %q: write key=value, e.g. state=down or a label such as rack=3", instance.Printable(text, 80))
		}
		switch key {
		case byRole:
			if _, err := instance.ParseRole(value); err != nil {
				return nil, usagef("--selector %s: %w", key, err)
			}
		case byState:
			if !slices.Contains(states(), value) {
				return nil, usagef("--selector state=%q: use one of %s", instance.Printable(value, 40), strings.Join(states(), ", "))
			}
		case byModel:
			if value == "" {
				return nil, usagef("--selector model=: name a model")
			}
		}
		out = append(out, term{key, value})
	}
	return out, nil
}

// fits tells whether an instance has all that is asked for.
func (s selector) fits(in *instance.Instance) bool {
	return !slices.ContainsFunc(s, func(t term) bool { return !t.fits(in) })
}

func (t term) fits(in *instance.Instance) bool {
	switch t.key {
	case byRole:
		return string(in.Role) == t.value
	case byState:
		return effective(in) == t.value
	case byModel: // the last part of a name is enough, as for --model
		return (&instance.Facts{Models: in.Record.Models}).Serves(t.value, false)
	}
	value, ok := in.Record.Labels[strings.TrimPrefix(t.key, labelPrefix)]
	return ok && value == t.value
}

// filter keeps what fits.
func (s selector) filter(snap *instance.Snapshot) *instance.Snapshot {
	if len(s) == 0 {
		return snap
	}
	var keep []*instance.Instance
	for _, in := range snap.All() {
		if s.fits(in) {
			keep = append(keep, in)
		}
	}
	return instance.NewSnapshot(snap.Revision, keep)
}

// named checks how many arguments there are: a role and addresses, and more behind them, or
// a role and --selector.
func (a *app) named(more int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(a.selectors) > 0 {
			return cobra.ExactArgs(1+more)(cmd, args)
		}
		return cobra.MinimumNArgs(2+more)(cmd, args)
	}
}

// chosen are the instances that a command is to change: those named, or those that fit
// the selector. Of an engine in both roles both entries have to.
func (a *app) chosen(ctx context.Context, args []string) ([]instance.Key, error) {
	role, err := instance.ParseRoles(args[0])
	if err != nil {
		return nil, cli.Wrong(err)
	}
	sel, err := a.selected()
	if err != nil {
		return nil, err
	}
	if len(sel) == 0 {
		return addresses(role, args[1:])
	}
	s, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	snap, err := s.store.Snapshot(ctx)
	if err != nil {
		return nil, a.hint(err)
	}
	proxies, err := s.store.Proxies(ctx)
	if err != nil {
		return nil, a.hint(err)
	}
	fit := map[instance.Key]bool{}
	var order []string
	for _, in := range sel.filter(asProxiesSay(snap, proxies)).All() {
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
		return nil, fmt.Errorf("no %s instance fits --selector %s; see pdctl list", role, instance.Printable(strings.Join(a.selectors, " "), 200))
	}
	return keys, nil
}

// completeSelector gives the keys, and the values that are there.
func (a *app) completeSelector(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	key, _, value := strings.Cut(typed, "=")
	values := map[string]bool{}
	switch {
	case value && key == byRole:
		for _, r := range instance.Roles() {
			values[key+"="+string(r)] = true
		}
	case value && key == byState:
		for _, s := range states() {
			values[key+"="+s] = true
		}
	case a.settle(cmd) != nil:
	default:
		if !value {
			values[byRole+"="], values[byModel+"="], values[byState+"="] = true, true, true
		}
		for _, in := range a.there(cmd.Context()) {
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
