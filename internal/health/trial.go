package health

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrRefused is wrapped by errors of Options.Trial when the API server refused the trial
// itself (4xx: a key that the proxy does not have, a model that does not complete text). Such
// an answer is no evidence about the engine's core.
var ErrRefused = errors.New("trial refused")

// trialInterval is the least time between the beginnings of two trials of one engine.
const trialInterval = 5 * time.Second

// trialLasts is longer than a trial takes on an engine that is not busy. A request that lasts
// longer counts as progress.
const trialLasts = 2 * time.Second

// The results of trials, for metrics.
const (
	TrialOK        = "ok"
	TrialFailed    = "failed"    // an error, or no answer in time
	TrialRefused   = "refused"   // see ErrRefused
	TrialCancelled = "cancelled" // it was not needed any more
)

// TrialResults lists the results of trials.
func TrialResults() []string {
	return []string{TrialOK, TrialFailed, TrialRefused, TrialCancelled}
}

// trials holds the last trial of each engine. It makes at most one trial of an engine at a time,
// and one in trialInterval, for all parts of the Tracker that need a result.
type trials struct {
	mu        sync.Mutex
	byAddress map[string]*trial
}

// trial is one request of the proxy to an engine. The fields after done may be read when done
// is closed.
type trial struct {
	in     *instance.Instance
	began  time.Time
	cancel context.CancelFunc
	done   chan struct{}
	took   time.Duration
	err    error
}

// ended reports whether the trial has a result.
func (tr *trial) ended() bool {
	select {
	case <-tr.done:
		return true
	default:
		return false
	}
}

// passed reports whether the engine has answered the trial.
func (tr *trial) passed() bool { return tr.ended() && tr.err == nil }

// refused reports whether the trial was refused; see ErrRefused.
func (tr *trial) refused() bool { return tr.ended() && errors.Is(tr.err, ErrRefused) }

// notSent reports whether the trial could not be sent; see ErrNotSent.
func (tr *trial) notSent() bool { return tr.ended() && errors.Is(tr.err, ErrNotSent) }

// try returns the trial of an engine that is under way or began less than trialInterval ago, or
// starts one, which fails after limit. A trial of a former process at the address is not returned.
func (t *Tracker) try(in *instance.Instance, limit time.Duration) *trial {
	t.trials.mu.Lock()
	defer t.trials.mu.Unlock()
	now, snap := time.Now(), t.opts.Source.Snapshot()
	maps.DeleteFunc(t.trials.byAddress, func(_ string, tr *trial) bool {
		is, member := snap.Lookup(tr.in.Key)
		return !member || is.Incarnation() != tr.in.Incarnation() || tr.ended() && now.Sub(tr.began) >= trialInterval
	})
	if tr := t.trials.byAddress[in.Address]; tr != nil {
		return tr
	}
	ctx, cancel := context.WithTimeout(t.ctx, limit)
	tr := &trial{in: in, began: now, cancel: cancel, done: make(chan struct{})}
	t.trials.byAddress[in.Address] = tr
	t.work.Go(func() {
		defer cancel()
		tr.err = t.opts.Trial(ctx, in)
		tr.took = time.Since(tr.began)
		close(tr.done)
		result := TrialOK
		switch {
		case tr.err == nil:
		case tr.notSent():
			return
		case errors.Is(tr.err, ErrRefused):
			result = TrialRefused
		case errors.Is(ctx.Err(), context.Canceled):
			result = TrialCancelled
		default:
			result = TrialFailed
		}
		t.opts.OnTrial(result)
	})
	return tr
}
