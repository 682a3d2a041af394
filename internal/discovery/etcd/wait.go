package etcd

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/sirupsen/logrus"
)

// Seconds rounds a TTL up to whole seconds, at least one.
func Seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}

// Pause waits and reports whether the context still runs.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Signal sets a flag that somebody waits for; a flag that is set already stays set.
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
