package health

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// recovery readmits one ejected engine.
type recovery struct {
	t      *Tracker
	key    instance.Key
	record *record
}

// run waits and probes until the engine answers, and readmits it. If the record requires a trial,
// the engine must answer that, too.
func (rc *recovery) run() {
	t, pause := rc.t, rc.t.opts.ProbeInterval
	next := max(rc.ejectionTime(), pause)
	var last *trial
	for {
		in, ok := rc.wait(next, nil)
		if !ok {
			return
		}
		began := time.Now()
		switch {
		case t.probe(in) != nil:
			pause = min(2*pause, t.opts.MaxProbeInterval)
			next = pause/2 + rand.N(pause/2+1)
			continue
		case !rc.state().trial:
			rc.readmit()
			return
		}
		// The trial may take as long as the ejection, so that an engine that resumes meanwhile still
		// answers it, and need not wait for the next one.
		readAt := rc.read(in)
		tr := t.try(in, max(trialInterval, rc.ejectionTime()))
		if _, ok = rc.wait(2*t.opts.MaxEjection, tr.done); !ok {
			tr.cancel()
			return
		}
		switch ofNow := !tr.began.Add(tr.took).Before(rc.state().since); {
		case ofNow && (tr.passed() || tr.refused() || rc.queued(in, tr, readAt)): // refused: no trial can be made at all
			rc.readmit()
			return
		case !ofNow || tr == last || tr.notSent(): // no result of this attempt
			next = max(t.opts.ProbeInterval, trialInterval-time.Since(tr.began))
			continue
		}
		last = tr
		rc.failTrial(tr)
		next = max(t.opts.ProbeInterval, rc.ejectionTime()-time.Since(began))
	}
}

// wait waits for d, or until done is closed. It returns the instance, or false if its
// incarnation has ended, or the Tracker is being closed.
func (rc *recovery) wait(d time.Duration, done <-chan struct{}) (*instance.Instance, bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for over := false; ; {
		snap := rc.t.opts.Source.Snapshot()
		in := rc.t.current(snap, rc.key, rc.record)
		if in == nil {
			rc.t.end(rc.key, rc.record)
			return nil, false
		}
		if over {
			return in, true
		}
		select {
		case <-rc.t.ctx.Done():
			return nil, false
		case <-snap.Changed():
		case <-timer.C:
			over = true
		case <-done:
			over = true
		}
	}
}

// state returns a copy of the record.
func (rc *recovery) state() record {
	rc.t.mu.RLock()
	defer rc.t.mu.RUnlock()
	return *rc.record
}

// read reads the metrics of the engine, and returns the time at which it was done.
func (rc *recovery) read(in *instance.Instance) time.Time {
	if rc.t.opts.Read != nil {
		rc.t.opts.Read(rc.t.ctx, in)
	}
	return time.Now()
}

// queued reports whether a trial got no answer because the engine is full: its core reports queued
// requests, and has made progress since readAt, the time of the last reading before the trial.
func (rc *recovery) queued(in *instance.Instance, tr *trial, readAt time.Time) bool {
	if !tr.ended() || !errors.Is(tr.err, ErrNoAnswer) {
		return false
	}
	rc.read(in)
	_, ran, _ := rc.t.Progress(rc.key)
	return ran.After(readAt) && rc.t.cores.queue(in.Address)
}

// failTrial records a failed trial: the engine is not picked any more while another one can be
// reached, and its ejection time doubles.
func (rc *recovery) failTrial(tr *trial) {
	rc.t.mu.Lock()
	defer rc.t.mu.Unlock()
	r := rc.record
	r.hard = true
	r.ejections++
	rc.t.opts.Log.WithFields(logrus.Fields{"instance": rc.key.String(), "failed": r.ejections, "after": tr.took.Round(time.Millisecond)}).
		WithError(tr.err).Warn("ejected instance failed a trial request")
}

// ejectionTime returns the least duration of the ejection, with jitter.
func (rc *recovery) ejectionTime() time.Duration {
	r := rc.state()
	if r.hard && !r.trial {
		return 0
	}
	d := rc.t.opts.Ejection << min(r.ejections-1, 20)
	if d <= 0 || d > rc.t.opts.MaxEjection {
		d = rc.t.opts.MaxEjection
	}
	return d/2 + rand.N(d/2+1)
}

func (rc *recovery) readmit() {
	rc.t.mu.Lock()
	defer rc.t.mu.Unlock()
	r := rc.record
	switch silent := time.Since(r.silentSince); {
	case r.silentSince.IsZero():
	case !r.trial:
		rc.t.history.remember(rc.key.Address, silent)
	case silent <= longestPause:
		rc.t.pauses.remember(rc.key.Address, silent)
	}
	r.readmit()
	rc.t.opts.Log.WithFields(logrus.Fields{"instance": rc.key.String(), "out": time.Since(r.since).Round(time.Millisecond)}).
		Info("instance readmitted: it answers again")
}
