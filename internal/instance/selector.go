package instance

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Selector selects instances by their properties. All of its terms must match.
type Selector []Term

// Term is one requirement, in kubectl's notation: key=value, key!=value, key in (a,b),
// key notin (a,b), key or !key. key is ByRole, ByModel or ByState, else the name of a label.
type Term struct {
	key    string
	not    bool     // !=, notin, !key: an instance without the label matches, too
	values []string // the accepted values; nil: the label must exist
}

// The keys that are not names of labels. A label with such a name is written label:NAME.
const (
	ByRole  = "role"
	ByModel = "model"
	ByState = "state"

	LabelPrefix = "label:"
)

// SelectorStates returns the values of state=, which are those of Instance.Status.
func SelectorStates() []string {
	return []string{
		string(Starting), string(Ready), string(Draining), string(Down),
		string(Pending), string(Unverified), string(Orphan), string(Ejected), string(Sleeping), string(Paused), string(Rejected), string(Elsewhere),
		Cordoned, string(Removed), "prefill-only", "decode-only",
	}
}

// EffectiveState returns the state for a value of state=, which can also be the name of an
// operator's intent.
func EffectiveState(value string) string {
	switch value {
	case string(Drain):
		return string(Draining)
	case string(Cordon):
		return Cordoned
	}
	return value
}

// The forms of a term. k8s.io/apimachinery/pkg/labels reads the same notation, but refuses
// values with a slash, which names of models have, and keys with a colon.
var (
	termEqual  = regexp.MustCompile(`^([^\s=!<>(),]+)\s*(==|=|!=)\s*([^\s=!<>(),]*)$`)
	termSet    = regexp.MustCompile(`^([^\s=!<>(),]+)\s+(in|notin)\s*\(([^=!<>()]*)\)$`)
	termExists = regexp.MustCompile(`^(!?)\s*([^\s=!<>(),]+)$`)
)

// ParseSelector parses requirements that are separated by commas.
func ParseSelector(text string) (Selector, error) {
	var out Selector
	for _, part := range SplitOutside(text, '(', ')') {
		t, err := parseTerm(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// String returns the selector in a form that does not depend on the order of requirements and values.
func (l Selector) String() string {
	terms := make([]string, len(l))
	for i, t := range l {
		not, in := "", " in ("
		if t.not {
			not, in = "!", " notin ("
		}
		switch len(t.values) {
		case 0:
			terms[i] = not + t.key
		case 1:
			terms[i] = t.key + not + "=" + t.values[0]
		default:
			terms[i] = t.key + in + strings.Join(slices.Sorted(slices.Values(t.values)), ",") + ")"
		}
	}
	slices.Sort(terms)
	return strings.Join(terms, ",")
}

// OnlyLabels reports whether a selector has only requirements on labels.
func (l Selector) OnlyLabels() bool {
	return !slices.ContainsFunc(l, Term.builtIn)
}

// Labels reports whether a requirement is about a label.
func (l Selector) Labels() bool {
	return slices.ContainsFunc(l, func(t Term) bool { return !t.builtIn() })
}

// builtIn reports whether the key is not the name of a label.
func (t Term) builtIn() bool { return t.key == ByRole || t.key == ByModel || t.key == ByState }

// SplitOutside splits a text at the commas outside of parentheses, or of another pair of characters.
func SplitOutside(text string, opening, closing rune) (parts []string) {
	depth, start := 0, 0
	for i, c := range text {
		switch c {
		case opening:
			depth++
		case closing:
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

func parseTerm(text string) (t Term, err error) {
	if m := termEqual.FindStringSubmatch(text); m != nil {
		t = Term{key: m[1], not: m[2] == "!=", values: []string{m[3]}}
	} else if m := termSet.FindStringSubmatch(text); m != nil {
		t = Term{key: m[1], not: m[2] == "notin"}
		for value := range strings.SplitSeq(m[3], ",") {
			t.values = append(t.values, strings.TrimSpace(value))
		}
	} else if m := termExists.FindStringSubmatch(text); m != nil {
		t = Term{key: m[2], not: m[1] != ""}
	} else {
		return t, errTerm
	}
	if t.key == LabelPrefix {
		return t, errTerm
	}
	return t, t.check()
}

var errTerm = errors.New("write key=value, key!=value, key in (a,b), key notin (a,b), key or !key, e.g. state=down or rack in (3,4)")

// check returns an error for values that no instance can have.
func (t *Term) check() error {
	if t.values == nil && t.builtIn() {
		return fmt.Errorf("every instance has a %s: write %[1]s=value", t.key)
	}
	for _, value := range t.values {
		switch t.key {
		case ByRole:
			if _, err := ParseRole(value); err != nil {
				return fmt.Errorf("%s: %w", t.key, err)
			}
		case ByState:
			if !slices.Contains(SelectorStates(), EffectiveState(value)) {
				return fmt.Errorf("state=%q: use one of %s", Printable(value, 40), strings.Join(SelectorStates(), ", "))
			}
		case ByModel:
			if value == "" {
				return errors.New("model=: name a model")
			}
		}
	}
	return nil
}

// Matches reports whether an instance meets all requirements.
func (l Selector) Matches(in *Instance) bool {
	return !slices.ContainsFunc(l, func(t Term) bool { return !t.matches(in) })
}

func (t *Term) matches(in *Instance) bool {
	if t.values == nil {
		_, ok := in.Record.Labels[t.label()]
		return ok != t.not
	}
	return slices.ContainsFunc(t.values, func(value string) bool { return t.has(in, value) }) != t.not
}

// has reports whether an instance has a value.
func (t *Term) has(in *Instance, value string) bool {
	switch t.key {
	case ByRole:
		return string(in.Role) == value
	case ByState:
		return in.Status() == EffectiveState(value)
	case ByModel: // the last part of a name is enough, as for --model
		return (&Facts{Models: in.Record.Models}).Serves(value, false)
	}
	is, ok := in.Record.Labels[t.label()]
	return ok && is == value
}

func (t *Term) label() string { return strings.TrimPrefix(t.key, LabelPrefix) }

// Filter keeps the instances that match.
func (l Selector) Filter(snap *Snapshot) *Snapshot {
	if len(l) == 0 {
		return snap
	}
	var keep []*Instance
	for _, in := range snap.All() {
		if l.Matches(in) {
			keep = append(keep, in)
		}
	}
	return NewSnapshot(snap.Revision, keep)
}

// SetHint returns a hint at the notation for several values if a selector without a match may need
// it: in "rack=1,2", 2 is the name of a label, as for kubectl. It returns "" otherwise.
func (l Selector) SetHint(snap *Snapshot) (hint string) {
	for i := 1; i < len(l); i++ {
		t, before := &l[i], &l[i-1]
		if t.values == nil && !t.not && len(before.values) == 1 && !slices.ContainsFunc(snap.All(), t.matches) {
			op := "in"
			if before.not {
				op = "notin"
			}
			hint = fmt.Sprintf("; no instance has a label %s: for several values write %s %s (%s,%s)", t.key, before.key, op, before.values[0], t.key)
		}
	}
	return hint
}
