package notice

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// minDecodeOnly is the number of consecutive decode-only requests that cause a notice, and
	// minLost the number of consecutive responses without a KV transfer.
	minDecodeOnly, minLost = 5, 3
	// most bounds the notices, mostListed the entries of a list in one of them.
	most, mostListed = 8, 4
	longest          = 400 // bytes of a notice
	// recent is the age up to which a refusal causes a notice.
	recent = 5 * time.Minute
)

// View is the state from which notices are derived.
type View struct {
	Snapshot *instance.Snapshot
	// Opinion returns this proxy's view of an instance.
	Opinion func(instance.Key) instance.Opinion
	// Fallback reports whether decode instances serve requests without a prefill instance.
	Fallback bool
	// PairKey returns which instances an instance can be paired with; its Connector is "" if it is unknown.
	PairKey func(*instance.Instance) connector.PairKey
	Counts  *Counts
	// NoKVEvents maps addresses of instances to the reason why their KV events cannot be followed.
	NoKVEvents map[string]string
	// Unnotified has the prefill instances that are bypassed because their notifications do
	// not arrive, with the addresses at which they are expected.
	Unnotified map[instance.Key]string
	// Kept is the number of keys of a former etcd that are in effect although etcd lacks them.
	Kept int
	// Unsaved is the reason why the membership cannot be written to disk, "" if it can.
	Unsaved string
}

// NotServing returns why this proxy can serve no request at all, in a sentence, or "" if it
// can serve some: a decode instance can be used, and without a fallback also a prefill
// instance that can be paired with it.
func (v View) NotServing() string {
	decode := v.usable(instance.Decode)
	if len(decode) == 0 && v.Snapshot.Revision == 0 {
		return "the membership has not been read yet" + instance.NothingServed
	}
	if len(decode) == 0 {
		return v.unusable(instance.Decode, instance.NothingServed)
	}
	if v.Fallback {
		return ""
	}
	prefill := v.usable(instance.Prefill)
	switch {
	case len(prefill) == 0:
		return v.unusable(instance.Prefill, instance.NothingServed)
	case !v.canPair(prefill, decode):
		return "no prefill instance can be paired with a decode instance, and --fallback is none" + instance.NothingServed
	}
	return ""
}

// canPair reports whether some of the prefill instances can be paired with some of the
// decode instances.
func (v View) canPair(prefill, decode []*instance.Instance) bool {
	ds := count(decode, v.PairKey)
	return slices.ContainsFunc(sorted(count(prefill, v.PairKey)), func(p connector.PairKey) bool { return matches(p, ds) })
}

// count counts instances by key.
func count(list []*instance.Instance, key func(*instance.Instance) connector.PairKey) map[connector.PairKey]int {
	out := map[connector.PairKey]int{}
	for _, in := range list {
		out[key(in)]++
	}
	return out
}

// matches reports whether instances with a key can be paired with some of the others.
func matches(k connector.PairKey, others map[connector.PairKey]int) bool {
	return slices.ContainsFunc(sorted(others), func(other connector.PairKey) bool { return k.Mismatch(other) == "" })
}

// Texts returns the notices, most severe first; none if nothing is wrong.
func (v View) Texts() []string {
	var out []string
	add := func(format string, args ...any) {
		if len(out) < most {
			out = append(out, instance.Printable(fmt.Sprintf(format, args...), longest))
		}
	}
	prefill, decode := v.usable(instance.Prefill), v.usable(instance.Decode)
	if text := v.NotServing(); text != "" {
		add("%s", text)
	}
	counted, lost, refused := v.Counts.read()
	if names := refused[leg.EngineKey]; len(names) > 0 {
		add("engines have refused the key of this proxy in the last 5 minutes: %s. Correct --engine-api-key", instance.Some(names))
	}
	if names := refused[leg.Untrusted]; len(names) > 0 {
		add("TLS with engines failed in the last 5 minutes: %s. The log of this proxy has the reasons", instance.Some(names))
	}
	if v.Kept > 0 {
		add("keys of a former etcd are in effect, which etcd lacks (%d): pdctl restore --all writes them back, pdctl forget --all drops them", v.Kept)
	}
	if v.Unsaved != "" {
		add("the membership cannot be saved to --state-dir: %s. After a restart without etcd its instances would be unknown", v.Unsaved)
	}
	if len(prefill) == 0 && len(decode) > 0 && v.Fallback && v.registered(instance.Prefill) {
		add("%s", v.unusable(instance.Prefill, ": decode computes every prompt"))
	}
	if len(prefill) > 0 && len(decode) > 0 {
		v.unpaired(prefill, decode, add)
		v.models(prefill, decode, add)
	}
	v.hung(add)
	orphans(slices.Concat(prefill, decode), add)
	for _, in := range prefill {
		if text := in.Warning(v.PairKey(in).Connector); text != "" {
			add("prefill %s: %s", in.Address, text)
		}
	}
	for _, address := range slices.Sorted(maps.Keys(v.NoKVEvents)) {
		add("no KV events from %s: %s", address, v.NoKVEvents[address])
	}
	for _, k := range slices.SortedFunc(maps.Keys(v.Unnotified), func(a, b instance.Key) int { return cmp.Compare(a.Address, b.Address) }) {
		// doctor parses this text (unnotified in doctor/agents.go).
		add("prefill %s is bypassed: its LMCache notifications do not arrive; they are expected at %s", k.Address, v.Unnotified[k])
	}
	if v.canPair(prefill, decode) {
		delete(counted, bypass.NoPrefill) // counted while there were none
		unused(len(prefill), counted, add)
	}
	for _, k := range slices.SortedFunc(maps.Keys(lost), func(a, b instance.Key) int { return cmp.Compare(a.Address, b.Address) }) {
		if in, ok := v.Snapshot.Lookup(k); ok && lost[k] >= minLost {
			add("prefill %s (%s) has sent no transfer params in its last %d answers, and decode computes its prompts again: is its vLLM started with --kv-transfer-config?",
				k.Address, v.PairKey(in).Connector, lost[k])
		}
	}
	return out
}

// usable returns the instances of a role that requests can be sent to: slow ones only if
// there is no other.
func (v View) usable(role instance.Role) []*instance.Instance {
	var list, slow []*instance.Instance
	for _, in := range v.Snapshot.All() {
		switch {
		case in.Role != role || !in.CanServe(v.Opinion(in.Key)):
		case in.Slow():
			slow = append(slow, in)
		default:
			list = append(list, in)
		}
	}
	if len(list) == 0 {
		return slow
	}
	return list
}

// registered reports whether this proxy has instances of a role.
func (v View) registered(role instance.Role) bool {
	return slices.ContainsFunc(v.Snapshot.All(), func(in *instance.Instance) bool {
		return in.Role == role && in.View != instance.Elsewhere
	})
}

// unusable returns the sentence that no instance of a role can be used, with their states
// and with the consequence.
func (v View) unusable(role instance.Role, consequence string) string {
	states, n := map[string]int64{}, 0
	for _, in := range v.Snapshot.All() {
		if in.Role == role && in.View != instance.Elsewhere {
			states[v.status(in)]++
			n++
		}
	}
	if n == 0 {
		return fmt.Sprintf("no %s instance is registered%s", role, consequence)
	}
	return fmt.Sprintf("%s registered, but none can be used (%s)%s", instances(n, role), listed(states, func(name string) string { return name }), consequence)
}

// orphans reports the instances in use that pdctl list does not show, because their keys were lost.
func orphans(used []*instance.Instance, add func(string, ...any)) {
	var names []string
	for _, in := range used {
		if in.View == instance.Orphan {
			names = append(names, in.Key.String())
		}
	}
	if len(names) > 0 {
		add("instances that are no longer registered are used while they answer: %s. Check that their agents run and reach etcd, or stop requests with pdctl drain --force", instance.Some(names))
	}
}

// hung reports instances whose engine core makes no progress: their API servers answer, so
// nothing else shows it.
func (v View) hung(add func(string, ...any)) {
	for _, role := range instance.Roles() {
		for _, in := range v.Snapshot.Usable(role) {
			if o := v.Opinion(in.Key); o.View == instance.Ejected && strings.HasPrefix(o.Reason, "hung:") {
				add("%s %s is ejected: %s. It returns when a trial request succeeds; if none does, restart its engine", role, in.Address, o.Reason)
			}
		}
	}
}

// status returns the short reason why an instance cannot be used.
func (v View) status(in *instance.Instance) string {
	switch s := in.Seen(v.Opinion(in.Key)).Status(); s {
	case string(instance.Ready), string(instance.Orphan):
		return "of weight 0" // no other reason is left
	default:
		return s
	}
}

// unpaired reports prefill instances without a partner, and those whose partners all have another
// KV block size: depending on the connector, decode then finds nothing in a shared pool, or the
// engines report the mismatch.
func (v View) unpaired(prefill, decode []*instance.Instance, add func(string, ...any)) {
	ps, ds := count(prefill, v.PairKey), count(decode, v.PairKey)
	for _, p := range sorted(ps) {
		if !matches(p, ds) {
			add("%s unused: prefill speaks %s, decode %s, and there is no pair of them", instances(ps[p], instance.Prefill), text(p), texts(ds))
		}
	}
	size := func(in *instance.Instance) connector.PairKey {
		k := v.PairKey(in)
		k.Blocks = in.Record.BlockSize
		return k
	}
	sized := count(decode, size)
	for _, p := range sorted(count(prefill, size)) {
		free := connector.PairKey{Connector: p.Connector, Build: p.Build}
		if ps[free] > 0 && matches(free, ds) && !matches(p, sized) {
			add("prefill speaks %s, decode %s: where both do not have the same size, a KV transfer may fail, and a shared pool is of no use", text(p), texts(sized))
		}
	}
}

// text describes a PairKey.
func text(k connector.PairKey) string {
	out := cmp.Or(k.Connector, "an unknown connector")
	if k.Build != "" {
		out += " of build " + k.Build
	}
	if k.Blocks > 0 {
		out += fmt.Sprintf(" with KV blocks of %d tokens", k.Blocks)
	}
	return out
}

func sorted(keys map[connector.PairKey]int) []connector.PairKey {
	return slices.SortedFunc(maps.Keys(keys), func(a, b connector.PairKey) int { return cmp.Compare(text(a), text(b)) })
}

func texts(keys map[connector.PairKey]int) string {
	var out []string
	for _, k := range sorted(keys) {
		out = append(out, text(k))
	}
	return strings.Join(out, " and ")
}

// models reports models that only one of the roles serves. A decode instance whose record has no connector
// and no sign of NIXL needs no prefill: it may serve embeddings.
func (v View) models(prefill, decode []*instance.Instance, add func(string, ...any)) {
	ps, ds := served(prefill), served(decode)
	fetching := served(slices.DeleteFunc(slices.Clone(decode), func(in *instance.Instance) bool {
		name := v.PairKey(in).Connector
		return in.Record.Connector == "" && in.Record.Transfer == "" && (name == connector.Default || name == instance.TransferNIXL)
	}))
	only := func(a, b map[string]int64) (names []string) {
		for _, name := range slices.Sorted(maps.Keys(a)) {
			if b[name] == 0 && len(names) < mostListed {
				names = append(names, name)
			}
		}
		return names
	}
	for _, name := range only(ps, ds) {
		add("only prefill serves model %s: requests that generate are refused", name)
	}
	for _, name := range only(fetching, ps) {
		add("no prefill instance serves model %s: decode computes its prompts", name)
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

// unused reports usable prefill instances that recent requests did not use.
func unused(ready int, counted map[string]int64, add func(string, ...any)) {
	total := int64(0)
	for _, n := range counted {
		total += n
	}
	if total >= minDecodeOnly {
		add("%s ready, but each of the last %d requests was served by decode alone: %s", instances(ready, instance.Prefill), total,
			listed(counted, func(name string) string { return name + " (" + bypass.Text(name) + ")" }))
	}
}

// instances returns the number of instances of a role as the subject of a sentence.
func instances(n int, role instance.Role) string {
	if n == 1 {
		return fmt.Sprintf("1 %s instance is", role)
	}
	return fmt.Sprintf("%d %s instances are", n, role)
}

// listed formats counts, the largest first.
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
