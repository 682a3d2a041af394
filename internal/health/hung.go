package health

import (
	"errors"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The core of an engine can hang while its API server answers /health, /v1/models and
// /metrics (vllm#39863). Requests then get no byte, and no sample of the core changes. A
// healthy core may look the same for seconds: it computes a long prompt in one step, compiles
// a grammar, or waits for a KV cache. An instance is therefore ejected as hung only if all of
// this holds:
//
//   - For hungLimit neither a byte nor a changed sample was observed, although its metrics were
//     read every second. The limit grows with pauses of this instance in the last minutes, and
//     with the prompt tokens that it has to compute, at its past rate.
//   - It has not answered a trial of one token either.
//   - A peer has answered the same trial, sent at the same time, in a quarter of the time. A
//     fleet that is slow as a whole ejects no instance, and the last instance of a role stays.
const (
	// hungLimit is the time without progress after which an instance is ejected. The watch
	// begins when a leg has waited for sched.Options.SilentAfter, 1 s.
	hungLimit = 5 * time.Second
	// hungReadEvery is the time between two readings of the metrics of a suspect.
	hungReadEvery = time.Second
	// hungTrialAfter is the time without progress after which trials are sent.
	hungTrialAfter = 2 * time.Second
	// hungPatience is the least time that a suspect gets to answer a trial.
	hungPatience = hungLimit - hungTrialAfter
	// hungCheck is the time between two checks.
	hungCheck = 250 * time.Millisecond
	// unprovenFactor multiplies the limit of an instance that refuses trials, which can be compared
	// only with the answers of its peers to other requests.
	unprovenFactor = 3
	// prefillFactor multiplies the expected time of the waiting prompts; the product is the least
	// limit.
	prefillFactor = 4
	// leastPrefillRate is the rate, in tokens per second, of an engine that has not reported
	// how fast it computes prompts.
	leastPrefillRate = 10
	// longestPause bounds a pause that is remembered: a longer one was a hang, and the
	// instance gets no more time when it happens again.
	longestPause = 10 * time.Second
)

// progressWatch watches an instance that keeps legs waiting, until its core makes progress or it is
// ejected.
type progressWatch struct {
	t     *Tracker
	in    *instance.Instance
	since time.Time // last observed progress

	readAt  time.Time // when the last reading of its metrics began
	reading chan struct{}

	own        *trial
	unanswered time.Time // when the first trial began that it has not answered; zero: none
	unproven   bool      // the instance refuses trials
	peers      map[*instance.Instance]*trial
	peersAt    time.Time // when the peers were tried last
	received   map[instance.Key]uint64
	receivedAt time.Time // when a peer last sent a byte of an answer
}

// watchProgress starts a progressWatch of an instance that keeps legs waiting, unless there is
// one, or its progress cannot be observed.
func (t *Tracker) watchProgress(in *instance.Instance) {
	if t.opts.Read == nil || t.opts.Trial == nil {
		return
	}
	if _, _, observable := t.Progress(in.Key); !observable {
		return
	}
	if _, watched := t.cores.watched.LoadOrStore(in.Address, true); watched {
		return
	}
	t.work.Go(func() {
		defer t.cores.watched.Delete(in.Address)
		w := &progressWatch{t: t, in: in, peers: map[*instance.Instance]*trial{}, received: map[instance.Key]uint64{}}
		w.run()
	})
}

// run watches until the instance makes progress, or is ejected by this watch or otherwise.
func (w *progressWatch) run() {
	ctx := w.t.ctx
	// The last reading may be older than the last progress: only changes from now on count.
	w.read()
	select {
	case <-w.reading:
	case <-ctx.Done():
		return
	}
	w.since = time.Now()
	tick := time.NewTicker(hungCheck)
	defer tick.Stop()
	last := w.since
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if missed := now.Sub(last) - hungCheck; missed > 2*hungCheck {
				w.since = w.since.Add(missed) // this process did not run: see silenceWatch
			}
			last = now
			if w.check(now) {
				return
			}
		}
	}
}

// read reads the metrics of the instance, unless a reading is under way.
func (w *progressWatch) read() {
	if w.reading != nil {
		select {
		case <-w.reading:
		default:
			return
		}
	}
	done := make(chan struct{})
	w.reading, w.readAt = done, time.Now()
	w.t.work.Go(func() {
		defer close(done)
		w.t.opts.Read(w.t.ctx, w.in)
	})
}

// check compares the progress once, and reports whether the watch is over.
func (w *progressWatch) check(now time.Time) bool {
	t := w.t
	is, member := t.opts.Source.Snapshot().Lookup(w.in.Key)
	_, ran, observable := t.Progress(w.in.Key)
	switch {
	case !member, is.Incarnation() != w.in.Incarnation(), !observable, !t.Available(w.in.Key):
		return true
	case ran.After(w.since):
		t.pauses.remember(w.in.Address, ran.Sub(w.since))
		return true
	}
	if now.Sub(w.readAt) >= hungReadEvery {
		w.read()
	}
	frozen := now.Sub(w.since)
	if frozen < hungTrialAfter {
		return false
	}
	if w.tryOwn(now) {
		t.pauses.remember(w.in.Address, frozen)
		return true
	}
	w.tryPeers(now)
	limit := w.limit()
	if frozen < limit || now.Sub(t.cores.last(w.in.Address).read) > hungReadEvery+2*time.Second {
		return false // too early, or its metrics are not answered: the silenceWatch decides
	}
	why := w.evidence(now, frozen, limit)
	if why == "" {
		return false
	}
	t.ejectHard(w.in, w.since, fmt.Sprintf("hung: no request made progress for %s, %s", frozen.Round(hungCheck), why))
	return true
}

// tryOwn sends a trial to the instance. It reports whether the instance has answered one since
// the watch began.
func (w *progressWatch) tryOwn(now time.Time) (answered bool) {
	if w.unproven {
		return false
	}
	if w.own == nil {
		w.t.work.Go(func() { w.t.CheckSuspended(w.t.ctx, w.in) })
	}
	w.own = w.renew(w.own, w.in, now)
	switch {
	case !w.own.ended() || errors.Is(w.own.err, ErrNoAnswer):
		if w.unanswered.IsZero() {
			w.unanswered = w.own.began
			if w.unanswered.Before(w.since) {
				w.unanswered = w.since
			}
		}
		return false
	case w.own.err == nil:
		return !w.own.began.Before(w.since)
	case w.own.refused():
		w.unproven = true
	}
	w.unanswered = time.Time{} // an error is an answer; requests get it, too
	return false
}

// renew returns the last trial of an instance, or another one when its result is old.
func (w *progressWatch) renew(last *trial, in *instance.Instance, now time.Time) *trial {
	if last != nil && (!last.ended() || now.Sub(last.began) < trialInterval) {
		return last
	}
	return w.t.try(in, 2*hungLimit)
}

// tryPeers sends the same trial to some instances that could take the requests of this one.
func (w *progressWatch) tryPeers(now time.Time) {
	for k, before := range w.received {
		if received := w.t.opts.Received(k); received != before {
			w.received[k], w.receivedAt = received, now
		}
	}
	if w.peersAt.IsZero() || now.Sub(w.peersAt) >= trialInterval {
		w.peersAt = now
		clear(w.peers)
		list, _ := (&peers{t: w.t, of: w.in}).sample()
		for _, p := range list {
			w.peers[p] = nil
			if _, known := w.received[p.Key]; !known {
				w.received[p.Key] = w.t.opts.Received(p.Key)
			}
		}
	}
	for p, last := range w.peers {
		w.peers[p] = w.renew(last, p, now)
	}
}

// evidence returns why the instance is hung and not slow, "" if that is not certain.
func (w *progressWatch) evidence(now time.Time, frozen, limit time.Duration) string {
	for p, tr := range w.peers {
		if !w.unproven && !w.unanswered.IsZero() && tr.passed() && !tr.began.Before(w.since) &&
			now.Sub(w.unanswered) >= max(hungPatience, peerFactor*tr.took) {
			return fmt.Sprintf("and a request of one token is unanswered that %s has answered in %s", p.Address, tr.took.Round(time.Millisecond))
		}
	}
	if w.unproven && frozen >= unprovenFactor*limit && now.Sub(w.receivedAt) <= 2*hungReadEvery {
		return "while others answer"
	}
	return ""
}

// limit returns how long the instance may make no progress.
func (w *progressWatch) limit() time.Duration {
	return max(hungLimit, historyFactor*w.t.pauses.slowest(w.in.Address), w.t.prefillTime(w.in)*prefillFactor)
}

// prefillTime returns the expected time to compute the prompts that wait for an instance, at the
// past rate that its metrics report. A decode instance computes few prompts, so its past rate is a
// poor measure: it counts as no slower than the slowest prefill instance.
func (t *Tracker) prefillTime(in *instance.Instance) time.Duration {
	tokens := t.opts.WaitingTokens(in.Key)
	if tokens <= 0 {
		return 0
	}
	rate := t.cores.prefillRate(in.Address)
	if in.Role == instance.Decode {
		slowest := 0.0
		for _, p := range t.opts.Source.Snapshot().Usable(instance.Prefill) {
			if r := t.cores.prefillRate(p.Address); r > 0 && (slowest == 0 || r < slowest) {
				slowest = r
			}
		}
		rate = max(rate, slowest)
	}
	seconds := float64(tokens) / max(rate, leastPrefillRate)
	return time.Duration(min(seconds, 24*60*60) * float64(time.Second))
}
