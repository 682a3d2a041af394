package watch

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// suspectAfter and staleAfter are how many questions in a row must fail
	// before the membership is called that.
	suspectAfter = 2
	staleAfter   = 5
	// checkRetry is the pause after a failed check, so that the end of contact
	// and its return are both noticed soon.
	checkRetry = 500 * time.Millisecond
)

// checked is the outcome of one check.
type checked struct {
	before   int64 // the last revision known when the check was sent
	revision int64
	cluster  uint64
	member   uint64 // that answered
	err      error
}

// check asks etcd for a sign of life on a jittered interval. A watch without
// traffic is silent when etcd is gone, and silent for ever when etcd came back
// with an older store; a linearizable read tells both. It counts keys only,
// which costs etcd 0.2 ms at a thousand instances.
func (w *Watcher) check(ctx context.Context) {
	wait := etcd.Jitter(w.o.CheckInterval)
	failed := false
	answers := &etcd.Patience{Longest: etcd.LongestWait}
	for etcd.Pause(ctx, wait) {
		// Read before the question is sent: the answer cannot be older than that.
		c := checked{before: w.seen.Load()}
		start := time.Now()
		cctx, cancel := context.WithTimeout(ctx, answers.Limit())
		resp, err := w.cli.Get(cctx, w.o.Layout.WatchStart(), clientv3.WithRange(w.o.Layout.WatchEnd()), clientv3.WithCountOnly())
		cancel()
		answers.Learn(time.Since(start), err == nil)
		wait = etcd.Jitter(w.o.CheckInterval)
		if err != nil {
			c.err = etcd.Explain(ctx, w.cli, "check", err, !failed)
			wait = min(wait, etcd.Jitter(checkRetry))
		} else {
			c.revision, c.cluster, c.member = resp.Header.Revision, resp.Header.ClusterId, resp.Header.MemberId
		}
		failed = err != nil
		if !w.tell(ctx, message{checked: &c}) {
			return
		}
	}
}
