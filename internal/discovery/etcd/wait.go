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
)

var watches atomic.Int64 //nolint:gochecknoglobals // metadata must be unique in the process

// WatchContext returns the context for one call of clientv3.Watch, which must end with it. The
// watch requires a leader, so that a member cut off from the others ends it, and has a gRPC
// stream of its own. clientv3 shares a stream among watches with equal metadata, and etcd checks
// each of them with the token that the stream began with: once that has expired (by default
// after five minutes), etcd refuses new watches for as long as another one keeps the stream open.
func WatchContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	return metadata.AppendToOutgoingContext(ctx, "pdmesh-watch", strconv.FormatInt(watches.Add(1), 10)), cancel
}

// Seconds rounds a TTL up to whole seconds, at least one.
func Seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}

// Signal sends on ch, which has a buffer of one, unless a signal is pending.
func Signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Jitter spreads an interval by a fifth to both sides.
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

// Limits of the back-off between two tries to follow etcd.
const (
	BackoffBase = 100 * time.Millisecond
	BackoffCap  = 3 * time.Second
	// GoodTime is how long a watch must last for the backoff to start over.
	GoodTime = 30 * time.Second
)
