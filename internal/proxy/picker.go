package proxy

import (
	"context"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// firstAnswersLimit bounds the wait of the first requests for instances that answer.
const firstAnswersLimit = 5 * time.Second

// awaitFirstAnswers closes started once an instance of each known role has answered; picks wait for
// that. A proxy accepts connections some milliseconds before it has read the membership and probed the
// instances. Without the wait, a restarted proxy would refuse requests although the fleet is healthy.
func (p *app) awaitFirstAnswers(ctx context.Context) {
	defer close(p.started)
	ctx, cancel := context.WithTimeout(ctx, firstAnswersLimit)
	defer cancel()
	select {
	case <-ctx.Done():
		return
	case <-p.watcher.Ready():
	}
	instance.Await(ctx, p.watcher.Snapshot, func(snap *instance.Snapshot) bool { return everyRoleUsable(snap, p.flags.Keys) })
}

// everyRoleUsable reports whether each role that has instances has one that can be used.
// Instances of the command line count before they have been written to etcd.
func everyRoleUsable(snap *instance.Snapshot, flags []instance.Key) bool {
	known, usable := map[instance.Role]bool{}, map[instance.Role]bool{}
	for _, in := range snap.All() {
		if in.View != instance.Pending && in.View != instance.Rejected && in.View != instance.Elsewhere && in.Intent == "" && in.Weight() > 0 {
			known[in.Role] = true
			usable[in.Role] = usable[in.Role] || in.Usable() || in.Slow()
		}
	}
	for _, k := range flags {
		if _, there := snap.Lookup(k); !there {
			known[k.Role] = true
		}
	}
	return !slices.ContainsFunc(instance.Roles(), func(role instance.Role) bool { return known[role] && !usable[role] })
}

// awaitMembership blocks until the membership has been read, for firstAnswersLimit at most. After a
// suspension of this process, it blocks until the membership has been read again, for a second at most.
// It returns when ctx ends.
func (p *app) awaitMembership(ctx context.Context) {
	if !p.serving.Load() { // faster than receiving from a closed channel, which takes its lock
		select {
		case <-ctx.Done():
			return
		case <-p.started:
			p.serving.Store(true)
		}
	}
	p.watcher.Fresh(ctx, time.Now())
}
