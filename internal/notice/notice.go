package notice

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// fewAlone is how many requests in a row are served by decode alone before that is
	// worth a word, and fewLost how many answers hand nothing over.
	fewAlone, fewLost = 5, 3
	// most bounds the notices, and what one of them lists.
	most, mostListed = 8, 4
	longest          = 400 // bytes of a notice
)

// View is what notices are made of.
type View struct {
	Snapshot *instance.Snapshot
	// Available reports whether an instance may be picked.
	Available func(instance.Key) bool
	// View returns this proxy's view of an instance that is not available, and Why the reason;
	// nil: instance.Ejected, for no reason.
	View func(instance.Key) instance.View
	Why  func(instance.Key) string
	// Connector resolves the dialect of an instance, "" for one that is not known.
	Connector func(*instance.Instance) string
	Counts    *Counts
	// Blocks is the size of KV blocks that a partner of an instance must have, too, 0 where
	// its connector copes with another; nil: all do.
	Blocks func(*instance.Instance) int
	// Deaf says, by address, why the KV events of an instance cannot be followed.
	Deaf map[string]string
	// Unnotified has the prefill instances that are bypassed because their notifications do
	// not arrive, with the addresses at which they are expected.
	Unnotified map[instance.Key]string
}

// Words are the notices, the gravest first; none if all is as it should be.
func (v View) Words() []string {
	var out []string
	say := func(format string, args ...any) {
		if len(out) < most {
			out = append(out, instance.Printable(fmt.Sprintf(format, args...), longest))
		}
	}
	prefill, decode := v.usable(instance.Prefill), v.usable(instance.Decode)
	v.unusable(instance.Decode, decode, "nothing is served", say)
	v.unusable(instance.Prefill, prefill, "decode computes every prompt", say)
	if len(prefill) > 0 && len(decode) > 0 {
		v.unpaired(prefill, decode, say)
		v.blocks(prefill, decode, say)
		v.models(prefill, decode, say)
	}
	v.hung(say)
	for _, in := range prefill {
		if text := in.Warning(v.Connector(in)); text != "" {
			say("prefill %s: %s", in.Address, text)
		}
	}
	for _, address := range slices.Sorted(maps.Keys(v.Deaf)) {
		say("nothing is heard of the KV cache of %s: %s", address, v.Deaf[address])
	}
	for _, k := range slices.SortedFunc(maps.Keys(v.Unnotified), func(a, b instance.Key) int { return cmp.Compare(a.Address, b.Address) }) {
		// doctor reads this text (its file notifications.go).
		say("prefill %s is bypassed: its LMCache notifications do not arrive; they are expected at %s", k.Address, v.Unnotified[k])
	}
	counted, lost := v.Counts.read()
	if v.pairs(prefill, decode) {
		delete(counted, alone.NoPrefill) // of a time when there were none
		unused(len(prefill), counted, say)
	}
	for _, k := range slices.SortedFunc(maps.Keys(lost), func(a, b instance.Key) int { return cmp.Compare(a.Address, b.Address) }) {
		if in, ok := v.Snapshot.Lookup(k); ok && lost[k] >= fewLost {
			say("prefill %s (%s) has handed nothing over in its last %d answers, and decode computes its prompts again: is its vLLM started with --kv-transfer-config?",
				k.Address, v.Connector(in), lost[k])
		}
	}
	return out
}

// usable are the instances of a role that can be picked: slow ones only where there is
// no other.
func (v View) usable(role instance.Role) (list []*instance.Instance) {
	for _, in := range v.Snapshot.Usable(role) {
		if v.Available(in.Key) {
			list = append(list, in)
		}
	}
	if len(list) > 0 {
		return list
	}
	for _, in := range v.Snapshot.All() {
		if in.Role == role && in.Slow() {
			list = append(list, in)
		}
	}
	return list
}

// unusable tells of a role of which instances are there and none can be used.
func (v View) unusable(role instance.Role, usable []*instance.Instance, then string, say func(string, ...any)) {
	states, n := map[string]int64{}, 0
	for _, in := range v.Snapshot.All() {
		if in.Role == role && in.View != instance.Elsewhere {
			states[v.state(in)]++
			n++
		}
	}
	if n > 0 && len(usable) == 0 {
		say("%s there, but none can be used (%s): %s", instances(n, role), listed(states, func(name string) string { return name }), then)
	}
}

// hung reports instances whose engine core makes no progress: their API servers answer, so
// nothing else shows it.
func (v View) hung(say func(string, ...any)) {
	if v.Why == nil {
		return
	}
	for _, role := range instance.Roles() {
		for _, in := range v.Snapshot.Usable(role) {
			if why := v.Why(in.Key); !v.Available(in.Key) && strings.HasPrefix(why, "hung:") {
				say("%s %s is ejected: %s. It returns when a trial request succeeds; if none does, restart its engine", role, in.Address, why)
			}
		}
	}
}

// state returns the word for why an instance cannot be used.
func (v View) state(in *instance.Instance) string {
	switch {
	case in.Usable() && v.View != nil:
		return string(v.View(in.Key))
	case in.Usable():
		return string(instance.Ejected)
	case in.View != "" && in.View != instance.Orphan:
		return string(in.View)
	case in.Intent != "":
		return string(in.Intent)
	case in.Record.State == instance.Ready:
		return "of weight 0"
	}
	return string(in.Record.State)
}

// unpaired tells of dialects that only one of the roles speaks.
func (v View) unpaired(prefill, decode []*instance.Instance, say func(string, ...any)) {
	ps, ds := v.dialects(prefill), v.dialects(decode)
	for _, name := range slices.Sorted(maps.Keys(ps)) {
		if ds[name] == 0 {
			say("%s unused: prefill speaks %s, decode %s, and there is no pair of them", instances(int(ps[name]), instance.Prefill), name,
				strings.Join(slices.Sorted(maps.Keys(ds)), " and "))
		}
	}
}

func (v View) dialects(list []*instance.Instance) map[string]int64 {
	out := map[string]int64{}
	for _, in := range list {
		out[cmp.Or(v.Connector(in), "an unknown connector")]++
	}
	return out
}

// pairs tells whether some prefill instance goes with some decode instance.
func (v View) pairs(prefill, decode []*instance.Instance) bool {
	ds := v.dialects(decode)
	return slices.ContainsFunc(prefill, func(in *instance.Instance) bool { return ds[v.Connector(in)] > 0 })
}

// models tells of models that only one of the roles serves.
func (v View) models(prefill, decode []*instance.Instance, say func(string, ...any)) {
	ps, ds := served(prefill), served(decode)
	only := func(a, b map[string]int64) (names []string) {
		for _, name := range slices.Sorted(maps.Keys(a)) {
			if b[name] == 0 && len(names) < mostListed {
				names = append(names, name)
			}
		}
		return names
	}
	for _, name := range only(ps, ds) {
		say("no decode instance serves model %s, which %d prefill instances serve: it is not served", name, ps[name])
	}
	for _, name := range only(ds, ps) {
		say("no prefill instance serves model %s: decode computes its prompts", name)
	}
}

func served(list []*instance.Instance) map[string]int64 {
	out := map[string]int64{}
	for _, in := range list {
		for _, m := range in.Record.Models {
			out[m]++
		}
	}
	return out
}

// unused tells of prefill instances that could have been used, and were of no use.
func unused(ready int, counted map[string]int64, say func(string, ...any)) {
	total := int64(0)
	for _, n := range counted {
		total += n
	}
	if total >= fewAlone {
		say("%s ready, but each of the last %d requests was served by decode alone: %s", instances(ready, instance.Prefill), total,
			listed(counted, func(name string) string { return name + " (" + alone.Words(name) + ")" }))
	}
}

// instances counts the instances of a role, up to the verb.
func instances(n int, role instance.Role) string {
	if n == 1 {
		return fmt.Sprintf("1 %s instance is", role)
	}
	return fmt.Sprintf("%d %s instances are", n, role)
}

// listed writes counts, the largest first.
func listed(counts map[string]int64, words func(string) string) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var parts []string
	for i, name := range names {
		if i == mostListed {
			parts = append(parts, "and others")
			break
		}
		parts = append(parts, fmt.Sprintf("%d %s", counts[name], words(name)))
	}
	return strings.Join(parts, ", ")
}
