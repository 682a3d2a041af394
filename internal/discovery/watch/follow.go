package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
)

// Ends of the watch, as counted in Status.WatchEnds.
const (
	endCompacted  = "compacted"
	endNoLeader   = "no-leader"
	endAuth       = "auth"
	endClosed     = "closed"
	endNotCreated = "not-created"
	endCanceled   = "canceled"
	endAsked      = "re-list"
)

// Reasons for reading everything again while the watch runs.
const (
	relistEpoch    = "etcd is another store than before"
	relistRegained = "contact regained"
	relistDrift    = "the audit differs"
	relistRoutine  = "routine"
	relistResumed  = "this process was suspended"
	relistMoved    = "a member of etcd is silent, another answers"
)

// relistInterval is the mean time between two unconditional lists.
const relistInterval = 10 * time.Minute

// follow lists, watches from the next revision, and repeats this whenever the watch ends, until
// ctx ends. It sends everything that it receives to the owner.
func (w *Watcher) follow(ctx context.Context) {
	tries := 0
	lists, creations := &etcd.Patience{Client: w.cli, Longest: etcd.LongestList}, &etcd.Patience{Client: w.cli, Longest: etcd.LongestWait}
	for ctx.Err() == nil {
		select {
		case <-w.relist: // the list below answers the request
		default:
		}
		got, err := w.list(ctx, lists, tries == 0)
		if err != nil {
			if !w.send(ctx, func(o *owner) { o.listFailed(err) }) || !etcd.BackOff(ctx, tries) {
				return
			}
			tries++
			continue
		}
		if !w.send(ctx, func(o *owner) { o.load(&got) }) {
			return
		}
		start := time.Now()
		reason, err := w.watch(ctx, got.Revision+1, creations)
		if ctx.Err() != nil {
			return
		}
		w.log.WithField("reason", reason).WithField("error", err).Debug("the watch ended, listing again")
		if !w.send(ctx, func(o *owner) { o.watchEnded(reason, err) }) {
			return
		}
		if time.Since(start) > etcd.BackoffReset {
			tries = 0
		}
		if reason == endAsked {
			continue
		}
		if !etcd.BackOff(ctx, tries) {
			return
		}
		tries++
	}
}

// list reads the membership, and notes how long that took.
func (w *Watcher) list(ctx context.Context, p *etcd.Patience, withDiagnosis bool, opts ...clientv3.OpOption) (etcd.Listing, error) {
	// Both are read before the list is requested: it must not be older.
	before, asked := w.seen.Load(), w.suspension.requested.Load()
	start := time.Now()
	got, err := etcd.List(ctx, p.LimitFor(len(w.Snapshot().All())), w.cli, w.o.Layout, withDiagnosis, opts...)
	p.Learn(time.Since(start), err == nil)
	got.Before, got.Requested = before, asked
	return got, err
}

// send hands a message to the owner. It returns false if ctx has ended.
func (w *Watcher) send(ctx context.Context, m message) bool {
	select {
	case <-ctx.Done():
		return false
	case w.inbox <- m:
		return true
	}
}

// watch follows every change from revision on until the watch ends, and returns the reason. The
// creation of the watch has a separate deadline, since a stream can be opened on a hung member.
func (w *Watcher) watch(ctx context.Context, revision int64, creations *etcd.Patience) (reason string, err error) {
	wctx, cancel := etcd.WatchContext(ctx)
	defer cancel()
	start, limit := time.Now(), creations.Limit()
	deadline := time.AfterFunc(limit, cancel)
	defer deadline.Stop()
	created := false
	routine := time.NewTimer(etcd.Jitter(relistInterval)) // bounds the effect of an undetected fault
	defer routine.Stop()
	// Watch returns only once etcd has answered, or the context has ended.
	events := w.cli.Watch(wctx, w.o.Layout.WatchStart(),
		clientv3.WithRange(w.o.Layout.WatchEnd()), clientv3.WithRev(revision), clientv3.WithCreatedNotify())
	for {
		select {
		case <-ctx.Done():
			return endClosed, ctx.Err()
		case <-routine.C:
			return endAsked, errors.New(relistRoutine)
		case <-w.progress:
			// etcd answers only when the watch has delivered everything.
			if err := w.cli.RequestProgress(wctx); err != nil {
				w.log.WithField("error", err).Debug("cannot ask the watch for its progress")
			}
		case reason := <-w.relist:
			return endAsked, errors.New(reason)
		case resp, ok := <-events:
			if !ok {
				if !created {
					creations.Learn(time.Since(start), false)
					return endNotCreated, fmt.Errorf("etcd did not confirm the watch within %s", limit)
				}
				return endClosed, errors.New("the watch was closed")
			}
			if err := resp.Err(); err != nil {
				return classify(err), err
			}
			if resp.Created {
				deadline.Stop()
				created = true
				creations.Learn(time.Since(start), true)
				if !w.send(ctx, func(o *owner) { o.watchCreated(resp.Header.GetMemberId()) }) {
					return endClosed, ctx.Err()
				}
				continue
			}
			if !w.send(ctx, func(o *owner) { o.apply(&resp) }) {
				return endClosed, ctx.Err()
			}
		}
	}
}

// classify returns the reason of a watch that ended with an error. An unknown error is only an end,
// too: it never means that there is no key.
func classify(err error) string {
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return endCompacted
	case errors.Is(err, rpctypes.ErrNoLeader):
		return endNoLeader
	case status.Code(err) == codes.PermissionDenied, status.Code(err) == codes.Unauthenticated,
		slices.ContainsFunc(authErrors(), func(e error) bool { return isReason(err, e) }):
		return endAuth
	}
	return endCanceled
}

// authErrors returns the errors of etcd about the token or the rights of a client.
func authErrors() []error {
	return []error{rpctypes.ErrPermissionDenied, rpctypes.ErrInvalidAuthToken, rpctypes.ErrUserEmpty, rpctypes.ErrAuthOldRevision,
		rpctypes.ErrUserNotFound, rpctypes.ErrAuthFailed, rpctypes.ErrAuthNotEnabled, rpctypes.ErrInvalidAuthMgmt}
}

// isReason reports whether err is e, or the cancellation of a watch because of e: etcd sends the
// reason as text (WatchResponse.cancel_reason), and clientv3 does not recognise it if it begins
// with a code of gRPC.
func isReason(err, e error) bool {
	return errors.Is(err, e) || strings.HasSuffix(err.Error(), e.Error())
}
