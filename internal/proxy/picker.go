package proxy

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// beginLimit is how long the first requests wait for an instance that answers.
const beginLimit = 5 * time.Second

// begin lets the first requests be picked for once somebody of each known role
// has answered. A proxy takes connections before it has read the membership and
// asked the instances, which takes milliseconds; clients that came from a proxy
// which was restarted would be refused in that time, although nothing is wrong.
func (p *app) begin(ctx context.Context) {
	defer close(p.begun)
	timer := time.NewTimer(beginLimit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
		return
	case <-p.watcher.Ready():
	}
	for {
		snap := p.watcher.Snapshot()
		if answered(snap, p.flags.Keys) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-snap.Changed():
		}
	}
}

// answered tells that no role has instances of which none can be used yet. Those
// of the command line count before they have been written to etcd.
func answered(snap *instance.Snapshot, flags []instance.Key) bool {
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
	for role := range known {
		if !usable[role] {
			return false
		}
	}
	return true
}

// freshPicker picks over a membership that has been read, and not before a
// suspension of this process.
type freshPicker struct {
	*sched.Scheduler
	watcher *watch.Watcher
	begun   <-chan struct{}
	ready   *atomic.Bool // begun is closed
}

// Pick implements forward.Picker. It waits a second at most, and beginLimit at
// the start of the process, which is why no context reaches it.
func (p freshPicker) Pick(r sched.Request) (*sched.Assignment, error) {
	if !p.ready.Load() { // a look at a closed channel takes its lock
		<-p.begun
		p.ready.Store(true)
	}
	p.watcher.Fresh(context.Background(), time.Now())
	return p.Scheduler.Pick(r)
}
