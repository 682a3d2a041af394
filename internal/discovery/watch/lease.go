package watch

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// maxLeaseQuestions bounds the calls under way at one time: ten thousand
	// leases may end together.
	maxLeaseQuestions = 16
	// leaseTimeout bounds one question, the wait for its turn included. Whoever
	// gets no answer counts as having lost its lease, and is asked itself.
	leaseTimeout = 2 * time.Second
)

// leaseQuestion asks whether a key was deleted on purpose: a key that went with
// its lease was not.
type leaseQuestion struct {
	name  schema.Name
	gone  int64 // revision of the deletion, so that a late answer is no answer
	lease int64
	alive bool // the answer
}

// askLease asks etcd and tells the owner.
func (w *Watcher) askLease(ctx context.Context, q leaseQuestion) {
	q.alive = w.leaseLives(ctx, clientv3.LeaseID(q.lease))
	w.tell(ctx, message{lease: &q})
}

func (w *Watcher) leaseLives(ctx context.Context, id clientv3.LeaseID) bool {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	select {
	case <-ctx.Done():
		return false
	case w.leaseSlots <- struct{}{}:
	}
	defer func() { <-w.leaseSlots }()
	resp, err := w.cli.TimeToLive(ctx, id)
	return err == nil && resp.TTL > 0 // etcd says -1 of a lease that it does not know
}
