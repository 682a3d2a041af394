package loads

import (
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// ranks adds the load and the remembered prompts of each rank, and the pace of all ranks.
func (l *Loads) ranks(k instance.Key, to *instance.ListedLoad) {
	in, ok := l.Watcher.Snapshot().Lookup(k)
	if !ok {
		return
	}
	prompts := func(r policy.Remembered) *instance.ListedPrompts {
		if r.Entries == 0 {
			return nil
		}
		return &instance.ListedPrompts{Entries: r.Entries, Text: r.Text}
	}
	var all policy.Remembered
	ranks := l.Scheduler.Ranks(in)
	for rank, r := range ranks {
		to.Pace = to.Pace.Plus(l.Pace(instance.Key{Role: k.Role, Address: sched.AddressOf(in, rank)}))
		all.Entries += r.Prompts.Entries
		all.Text += r.Prompts.Text
		if len(ranks) > 1 {
			to.Ranks = append(to.Ranks, instance.ListedRank{InFlight: r.InFlight, WaitingTokens: r.Waiting, HeldTokens: r.Held, Prompts: prompts(r.Prompts)})
		}
	}
	to.Prompts = prompts(all)
}

// Remembered returns the sizes of the policies' prompt indexes, by role.
func (l *Loads) Remembered() map[instance.Role]policy.Remembered {
	out := map[instance.Role]policy.Remembered{}
	for _, role := range instance.Roles() {
		if r, ok := l.Scheduler.Remembered(role); ok {
			out[role] = r
		}
	}
	return out
}

// Prompts returns the same for /status.
func (l *Loads) Prompts() map[instance.Role]instance.ListedPrompts {
	out := map[instance.Role]instance.ListedPrompts{}
	for role, r := range l.Remembered() {
		out[role] = instance.ListedPrompts{Entries: r.Entries, Text: r.Text}
	}
	return out
}

// EachRank calls f for each rank of the instances that have several.
func (l *Loads) EachRank(f func(k instance.Key, rank int, load sched.RankLoad)) {
	for _, in := range l.Watcher.Snapshot().All() {
		if in.View == instance.Pending || in.Ranks() == 1 {
			continue
		}
		for rank, load := range l.Scheduler.Ranks(in) {
			f(in.Key, rank, load)
		}
	}
}
