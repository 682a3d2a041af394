package etcd

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
)

var watches atomic.Int64 //nolint:gochecknoglobals // metadata must be unique in the process

// WatchContext returns the context for one call of clientv3.Watch; cancel it when the watch ends.
// The watch requires a leader, so that it ends at a member that is cut off from the others. It also
// has a separate gRPC stream. clientv3 shares a stream among watches with equal metadata, and etcd
// checks them with the token of the first one. Once that has expired (by default after five
// minutes), etcd refuses new watches while another one keeps the stream open.
func WatchContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	return metadata.AppendToOutgoingContext(ctx, "pdmesh-watch", strconv.FormatInt(watches.Add(1), 10)), cancel
}

// Seconds rounds a TTL up to whole seconds, at least one.
func Seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}

// Grant grants a lease.
func Grant(ctx context.Context, cli *clientv3.Client, ttl time.Duration) (clientv3.LeaseID, error) {
	cctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	resp, err := cli.Grant(cctx, Seconds(ttl))
	if err != nil {
		return 0, Explain(ctx, cli, "grant a lease", err, true)
	}
	return resp.ID, nil
}

// Signal sends on ch, which has a buffer of one, unless a signal is pending.
func Signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Jitter returns a random duration from 0.8 d to 1.2 d.
func Jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}

// LogOrDiscard returns log, or a logger that discards everything if log is nil.
func LogOrDiscard(log logrus.FieldLogger) logrus.FieldLogger {
	if log != nil {
		return log
	}
	silent := logrus.New()
	silent.SetLevel(logrus.PanicLevel)
	return silent
}

// Retry calls follow until ctx ends, with a pause of full jitter after each call. ended is the log
// line about the end of a call.
func Retry(ctx context.Context, log logrus.FieldLogger, ended string, follow func(context.Context) error) {
	for tries := 0; ctx.Err() == nil; {
		start := time.Now()
		err := follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if tries++; time.Since(start) > BackoffReset {
			tries = 0
		}
		log.WithField("error", err).Debug(ended)
		BackOff(ctx, tries)
	}
}

// BackOff waits with full jitter, so that programs that lost the same etcd do not return to it
// together. It reports whether ctx still runs.
func BackOff(ctx context.Context, tries int) bool {
	return sleep.For(ctx, rand.N(min(backoffCap, backoffBase<<min(tries, 10))))
}

// Limits of the backoff between two calls of follow.
const (
	backoffBase = 100 * time.Millisecond
	backoffCap  = 3 * time.Second
	// BackoffReset is how long a watch must last for the backoff to start over.
	BackoffReset = 30 * time.Second
)
