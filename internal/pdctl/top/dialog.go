package top

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// verbs returns the changes by the keys that begin them.
func verbs() map[string]string {
	return map[string]string{"d": "drain", "c": "cordon", "w": "weight", "R": "role"}
}

// change is a change of the intent for one instance.
type change struct {
	key    instance.Key
	verb   string // drain, undrain, cordon, uncordon, weight, role
	weight int
	role   instance.Role // that an engine of both roles keeps
	sure   bool          // apply even if no instance of a role remains
	reason string
	usual  string // connector of records without one, as in the frame shown
}

// apply writes the change, or in a dry run only checks it, and returns its outcome.
func (x change) apply(ctx context.Context, intents *store.Intents, dry bool) string {
	k, opts := x.key, store.IntentOptions{Reason: x.reason}
	if x.verb == "role" {
		k.Role, opts.Force = x.role, x.sure
		opts.Fits = func(k instance.Key, rec instance.Record) error { return connector.Lacks(k, rec, x.usual) }
	}
	done, err := intents.Change(ctx, k, x.verb, &x.weight, opts)
	switch {
	case err != nil:
		return "failed: " + instance.Printable(err.Error(), 300)
	case !done.Changed:
		return fmt.Sprintf("%s %s: nothing to change", x.verb, x.key)
	case dry:
		return fmt.Sprintf("%s %s: dry run, nothing is written", x.verb, x.key)
	}
	return fmt.Sprintf("%s %s: done, revision %d", x.verb, x.key, done.Revision)
}

// dialog asks for the details of a change, and for its confirmation.
type dialog struct {
	change
	typed, error string
}

// newDialog returns the dialog of a change, or of its inverse if the instance already has that intent.
func newDialog(verb string, r *row) *dialog {
	if verb == string(r.Intent) {
		verb = "un" + verb
	}
	return &dialog{change: change{key: r.key(), verb: verb}}
}

// parse reads the typed text: the weight or role, "yes" if no instance would remain, and the reason.
// It returns a message about missing or wrong text, "" if all is correct.
func (d *dialog) parse(f *frame) string {
	text := strings.Join(strings.Fields(d.typed), " ")
	word, rest, _ := strings.Cut(text, " ")
	d.weight, d.role, d.reason = -1, "", text
	switch d.verb {
	case "weight":
		n, err := strconv.Atoi(word)
		if err != nil || !instance.ValidWeight(n) {
			return fmt.Sprintf("type a weight, a whole number from 0 to %d", instance.MaxWeight)
		}
		d.weight, d.reason = n, rest
	case "role":
		role, err := instance.ParseRoles(word)
		if err != nil {
			return "type a role: prefill, decode or both"
		}
		d.role, d.reason = role, rest
	}
	if _, d.sure = d.effect(f); d.sure {
		if word, rest, _ = strings.Cut(d.reason, " "); word != "yes" {
			return fmt.Sprintf(`no %s instance would remain: type "yes" before the reason`, d.key.Role)
		}
		d.reason = rest
	}
	return ""
}

// confirm makes the change if the typed text is complete.
func (m *model) confirm() tea.Cmd {
	if m.dialog.error = m.dialog.parse(m.frame); m.dialog.error != "" {
		return nil
	}
	x := m.dialog.change
	x.usual = m.frame.usual // here, because the change is made in another goroutine
	m.dialog, m.outcome = nil, fmt.Sprintf("%s %s ...", x.verb, x.key)
	return func() tea.Msg { return outcomeMsg(m.act(x)) }
}

// lines returns the lines of the dialog.
func (d *dialog) lines(f *frame) []string {
	d.parse(f) // the effect depends on the weight
	asks := "reason: "
	if d.verb == "weight" || d.verb == "role" {
		asks = d.verb + " and reason: "
	}
	effect, last := d.effect(f)
	if last {
		asks = strings.Replace(asks, "reason", `"yes" and reason`, 1)
	}
	return []string{d.verb + " " + d.key.String(), effect, asks + d.typed + "_", d.error, "enter confirms, esc cancels"}
}

// effect describes the effect of the change on its role, as the dashboard does. last reports whether
// no instance of the role would remain.
func (d *dialog) effect(f *frame) (what string, last bool) {
	key := d.key
	switch {
	case d.verb != "role":
	case d.role == instance.Prefill || d.role == instance.Decode:
		key.Role = d.role.Other() // the role that it leaves
	default:
		return "An engine of both roles serves in the role that you type, or in both.", false
	}
	serving, all := f.count(key.Role)
	left, ends := serving, ""
	for _, r := range f.all {
		if r.key() != key {
			continue
		}
		if r.Serves {
			left--
		}
		if r.InFlight != nil && *r.InFlight > 0 {
			ends = fmt.Sprintf(" %d in flight there run to their end.", *r.InFlight)
		}
	}
	switch {
	case d.verb == "undrain" || d.verb == "uncordon":
		return fmt.Sprintf("It takes requests again: %d of %d %s instances will serve if it is healthy.", left+1, all, key.Role), false
	case d.verb == "weight" && d.weight != 0:
		return fmt.Sprintf("%d of %d %s instances serve.", serving, all, key.Role), false
	case left == serving:
		return fmt.Sprintf("It does not serve now: %d of %d %s instances serve.%s", left, all, key.Role, ends), false
	case left > 0:
		return fmt.Sprintf("%d of %d serving %s instances remain.%s", left, serving, key.Role, ends), false
	case key.Role == instance.Prefill:
		return "No prefill instance remains: decode computes every prompt itself, or with --fallback none every request is refused with 503." + ends, true
	}
	return "No decode instance remains: every request is refused with 503." + ends, true
}
