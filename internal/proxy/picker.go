package proxy

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// firstAnswersLimit is how long the first requests wait for instances that answer.
const firstAnswersLimit = 5 * time.Second

// awaitFirstAnswers closes started once an instance of each known role has answered;
// picks wait for that. A proxy takes connections before it has read the membership and
// asked the instances, which takes milliseconds. Without the wait, the clients of a proxy
// that was restarted would be refused in that time, although nothing is wrong.
func (p *app) awaitFirstAnswers(ctx context.Context) {
	defer close(p.started)
	timer := time.NewTimer(firstAnswersLimit)
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
		if everyRoleUsable(snap, p.flags.Keys) {
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

// everyRoleUsable tells whether each role that has instances has one that can be used.
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
	for role := range known {
		if !usable[role] {
			return false
		}
	}
	return true
}

// freshPicker picks over a membership that has been read, and that was read after the
// last suspension of this process.
type freshPicker struct {
	*sched.Scheduler
	watcher *watch.Watcher
	started <-chan struct{}
	ready   *atomic.Bool // started is closed
}

// Pick implements forward.Picker. It waits a second at most, and firstAnswersLimit at
// the start of the process, which is why no context reaches it.
func (p freshPicker) Pick(r sched.Request) (*sched.Assignment, error) {
	if !p.ready.Load() { // cheaper than to receive from a closed channel, which takes its lock
		<-p.started
		p.ready.Store(true)
	}
	p.watcher.Fresh(context.Background(), time.Now())
	return p.Scheduler.Pick(r)
}
