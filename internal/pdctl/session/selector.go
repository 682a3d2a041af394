package session

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// A Selector selects instances by their properties. All of its terms must match.
type Selector []term

// term is one requirement, in kubectl's notation: key=value, key!=value, key in (a,b),
// key notin (a,b), key or !key. key is byRole, byModel or byState, else the name of a label.
type term struct {
	key    string
	not    bool     // !=, notin, !key: an instance without the label matches, too
	values []string // the accepted values; nil: the label must exist
}

// The keys that are not names of labels. A label with such a name is written label:NAME.
const (
	byRole  = "role"
	byModel = "model"
	byState = "state"

	labelPrefix = "label:"
)

// states returns the values of state=, as Instance.Status returns them.
func states() []string {
	return []string{
		string(instance.Starting), string(instance.Ready), string(instance.Draining), string(instance.Down),
		string(instance.Pending), string(instance.Unverified), string(instance.Ejected), string(instance.Sleeping), string(instance.Paused), string(instance.Rejected),
		instance.Cordoned, string(instance.Removed), "prefill-only", "decode-only",
	}
}

// EffectiveState returns the state for a value of state=, which can also be the name of an
// operator's intent.
func EffectiveState(value string) string {
	switch value {
	case string(instance.Drain):
		return string(instance.Draining)
	case string(instance.Cordon):
		return instance.Cordoned
	}
	return value
}

// Selectors are the values of --selector as on the command line.
type Selectors []string

const selectorUsage = "only instances that match, in kubectl's notation: key=value, key!=value, key in (a,b), key notin (a,b), key, !key, separated by commas; " +
	"key is role, model, state, or the name of a label (label:NAME for a label with one of these names); if repeated, all must match"

// Selects adds the flag to a command.
func (s *Session) Selects(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringArrayVarP((*[]string)(&s.Selectors), "selector", "l", nil, selectorUsage)
	_ = cmd.RegisterFlagCompletionFunc("selector", s.completeSelector) // the flag is there
	return cmd
}

// The forms of a term. k8s.io/apimachinery/pkg/labels reads the same notation, but refuses
// values with a slash, which names of models have, and keys with a colon.
var (
	termEqual  = regexp.MustCompile(`^([^\s=!<>(),]+)\s*(==|=|!=)\s*([^\s=!<>(),]*)$`)
	termSet    = regexp.MustCompile(`^([^\s=!<>(),]+)\s+(in|notin)\s*\(([^=!<>()]*)\)$`)
	termExists = regexp.MustCompile(`^(!?)\s*([^\s=!<>(),]+)$`)
)

// Parse parses the selectors.
func (l *Selectors) Parse() (Selector, error) {
	var out Selector
	for _, text := range *l {
		for _, part := range splitTerms(text) {
			t, err := parseTerm(strings.TrimSpace(part))
			if err != nil {
				return nil, cli.Wrongf("--selector %q: %w", instance.Printable(text, 80), err)
			}
			out = append(out, t)
		}
	}
	return out, nil
}

// splitTerms splits at the commas outside of parentheses.
func splitTerms(text string) (parts []string) {
	depth, start := 0, 0
	for i, c := range text {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, text[start:i])
				start = i + 1
			}
		}
	}
	return append(parts, text[start:])
}

func parseTerm(text string) (t term, err error) {
	if m := termEqual.FindStringSubmatch(text); m != nil {
		t = term{key: m[1], not: m[2] == "!=", values: []string{m[3]}}
	} else if m := termSet.FindStringSubmatch(text); m != nil {
		t = term{key: m[1], not: m[2] == "notin"}
		for value := range strings.SplitSeq(m[3], ",") {
			t.values = append(t.values, strings.TrimSpace(value))
		}
	} else if m := termExists.FindStringSubmatch(text); m != nil {
		t = term{key: m[2], not: m[1] != ""}
	} else {
		return t, errTerm
	}
	if t.key == labelPrefix {
		return t, errTerm
	}
	return t, t.check()
}

var errTerm = errors.New("write key=value, key!=value, key in (a,b), key notin (a,b), key or !key, e.g. state=down or rack in (3,4)")

// check returns an error for values that no instance can have.
func (t *term) check() error {
	switch t.key {
	case byRole, byState, byModel:
		if t.values == nil {
			return fmt.Errorf("every instance has a %s: write %[1]s=value", t.key)
		}
	}
	for _, value := range t.values {
		switch t.key {
		case byRole:
			if _, err := instance.ParseRole(value); err != nil {
				return fmt.Errorf("%s: %w", t.key, err)
			}
		case byState:
			if !slices.Contains(states(), EffectiveState(value)) {
				return fmt.Errorf("state=%q: use one of %s", instance.Printable(value, 40), strings.Join(states(), ", "))
			}
		case byModel:
			if value == "" {
				return errors.New("model=: name a model")
			}
		}
	}
	return nil
}

// NamedOrSelected checks the number of arguments after the flags are parsed: instances, or a role
// or nothing with --selector; more is the number of further arguments.
func (l *Selectors) NamedOrSelected(more int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(*l) > 0 {
			if len(args) < more || len(args) > 1+more {
				return fmt.Errorf("with --selector, name only a role: %q", args)
			}
			return nil
		}
		return cobra.MinimumNArgs(1+more)(cmd, args)
	}
}

// Labels reports whether a requirement is about a label.
func (l Selector) Labels() bool {
	return slices.ContainsFunc(l, func(t term) bool { return t.key != byRole && t.key != byModel && t.key != byState })
}

// Matches reports whether an instance meets all requirements.
func (l Selector) Matches(in *instance.Instance) bool {
	return !slices.ContainsFunc(l, func(t term) bool { return !t.matches(in) })
}

func (t *term) matches(in *instance.Instance) bool {
	if t.values == nil {
		_, ok := in.Record.Labels[t.label()]
		return ok != t.not
	}
	return slices.ContainsFunc(t.values, func(value string) bool { return t.has(in, value) }) != t.not
}

// has reports whether an instance has a value.
func (t *term) has(in *instance.Instance, value string) bool {
	switch t.key {
	case byRole:
		return string(in.Role) == value
	case byState:
		return in.Status() == EffectiveState(value)
	case byModel: // the last part of a name is enough, as for --model
		return (&instance.Facts{Models: in.Record.Models}).Serves(value, false)
	}
	is, ok := in.Record.Labels[t.label()]
	return ok && is == value
}

func (t *term) label() string { return strings.TrimPrefix(t.key, labelPrefix) }

// NoMatch returns the error that no instance of what, such as "decode ", matches. In
// "rack=1,2" the 2 is the name of a label, as for kubectl: if no instance has that label, the
// error says how to select several values.
func (l *Selectors) NoMatch(what string, snap *instance.Snapshot) error {
	hint := ""
	sel, err := l.Parse()
	for i := 1; err == nil && i < len(sel); i++ {
		t, before := &sel[i], &sel[i-1]
		if t.values == nil && !t.not && len(before.values) == 1 && !slices.ContainsFunc(snap.All(), t.matches) {
			hint = fmt.Sprintf("; no instance has a label %s: for several values write %s in (%s,%s)", t.key, before.key, before.values[0], t.key)
		}
	}
	return fmt.Errorf("no %sinstance matches --selector %s%s; see pdctl list", strings.TrimLeft(what, " "), instance.Printable(strings.Join(*l, " "), 200), instance.Printable(hint, 200))
}

// Filter keeps the instances that match.
func (l Selector) Filter(snap *instance.Snapshot) *instance.Snapshot {
	if len(l) == 0 {
		return snap
	}
	var keep []*instance.Instance
	for _, in := range snap.All() {
		if l.Matches(in) {
			keep = append(keep, in)
		}
	}
	return instance.NewSnapshot(snap.Revision, keep)
}

// ChosenKeys returns the instances that a command changes: those named, or those that match
// the selector. For the role "both", both entries of an engine have to match.
func (s *Session) ChosenKeys(ctx context.Context, args []string, accept Accept) ([]instance.Key, error) {
	sel, err := s.Selectors.Parse()
	if err != nil {
		return nil, err
	}
	if len(sel) == 0 {
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
	for _, in := range sel.Filter(lease.Seen(snap, proxies)).All() {
		if !fit[in.Key] {
			order = append(order, in.Address)
		}
		fit[in.Key] = true
	}
	slices.Sort(order)
	var keys []instance.Key
	for _, role := range roles {
		for _, address := range slices.Compact(order) {
			k := instance.Key{Role: role, Address: address}
			if !slices.ContainsFunc(k.Each(), func(one instance.Key) bool { return !fit[one] }) {
				keys = append(keys, k)
			}
		}
	}
	if len(keys) == 0 {
		return nil, s.Selectors.NoMatch(strings.Join(args, "")+" ", snap)
	}
	return keys, nil
}

// completeSelector returns completions: the keys, and the values that instances in etcd have.
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
