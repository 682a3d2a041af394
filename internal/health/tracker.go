// Package health judges instances by this proxy's requests and probes and by the engines' metrics.
// It never changes records in etcd: a network problem of one proxy must not remove an instance from
// the others.
//
//	requests: cannot connect ─────────────▶ ejected (hard) ──probe──▶ slow start ─▶ available
//	          fails where others serve ─▶ strikes ─▶ ejected (soft) ──time, probe──┘
//	          strikes for a time limit ─▶ ejected (soft) ──time, probe, trial──────┤
//	silence:  no answer to probes, while peers answer ─▶ ejected (hard) ──probe────┤
//	hung:     no progress, while peers answer trials ─▶ ejected (hard) ──trial─────┘
//
// Picks read the records, and reports to the Tracker change them. An ejected engine has a
// recovery. One that keeps legs waiting has a silenceWatch, which probes its API server, and a
// progressWatch, which compares the progress of its core with its peers.
package health

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Tracker receives reports about instances, ejects and readmits them, and probes those that keep
// requests waiting. It is safe for concurrent use.
type Tracker struct {
	Records // read by picks
	opts    Options
	history history // slow answers to probes
	pauses  history // pauses of engine cores
	trials  trials
	cores   cores

	ctx        context.Context //nolint:containedctx // lifetime of the probes, ended by Close
	cancel     context.CancelFunc
	work       sync.WaitGroup // all goroutines
	complaints rate.Sometimes // limits log entries about probes that could not be sent
}

// New returns a Tracker; Close ends its probes.
func New(o Options) *Tracker {
	o.setDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	return &Tracker{
		Records: Records{source: o.Source, slowStart: o.SlowStart, byAddress: map[string]*record{}},
		opts:    o, history: history{slow: map[string][]slowAnswer{}, limit: longestLimit},
		pauses: history{slow: map[string][]slowAnswer{}, limit: longestPause},
		trials: trials{byAddress: map[string]*trial{}},
		cores:  cores{byAddress: map[string]*core{}, noRoutes: map[string]string{}},
		ctx:    ctx, cancel: cancel, complaints: rate.Sometimes{Interval: complainEvery},
	}
}

// Close stops the probes and waits for them.
func (t *Tracker) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.work.Wait()
}

// Success clears the strikes of an instance that has served a request for a model.
func (t *Tracker) Success(in *instance.Instance, model string) {
	if !t.Trouble() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byAddress[in.Address]
	if r == nil || r.ejected {
		return
	}
	r.strikes, r.trial = 0, false
	maps.DeleteFunc(r.models, func(m string, s *modelStrikes) bool {
		s.others = true
		return m == model || time.Since(s.last) > t.forgiveAfter()
	})
	if len(r.models) == 0 && !r.suspected && r.suspended == "" && (r.readmitted.IsZero() || time.Since(r.readmitted) > t.forgiveAfter()) {
		t.forget(in.Key)
	}
}

// forgiveAfter is the time without a failure after which ejections are not counted any more.
func (t *Tracker) forgiveAfter() time.Duration { return max(t.opts.SlowStart, 2*t.opts.MaxEjection) }

// Strike counts a failure of an instance on a request for a model that another instance served.
// MaxFailures strikes in a row eject the instance; during a slow start, one does. If requests for
// another model have succeeded since the first strike, the ejection is for this model only and
// lasts MaxEjection, unless timedOut. timedOut reports that a time limit ended the request. After
// an ejection by such a failure only a successful trial readmits the instance, since its API server
// may answer probes while its core hangs.
func (t *Tracker) Strike(in *instance.Instance, model, reason string, timedOut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	r := t.find(in)
	if r == nil || r.ejected || r.suspended != "" {
		return
	}
	t.work.Go(func() { t.CheckSuspended(t.ctx, in) })
	s := r.models[model]
	if s == nil {
		s = &modelStrikes{}
		r.models[model] = s
	}
	s.n++
	s.last = time.Now()
	if s.others && !timedOut {
		if s.n >= t.opts.MaxFailures {
			s.until = s.last.Add(t.opts.MaxEjection)
			t.opts.Log.WithFields(logrus.Fields{"instance": in.Key.String(), "model": instance.Printable(model, 128), "reason": reason, "for": t.opts.MaxEjection}).
				Warn("instance ejected for one model: it serves others")
		}
		return
	}
	r.strikes++
	r.trial = (r.trial || timedOut) && t.opts.Trial != nil
	probation := !r.readmitted.IsZero() && time.Since(r.readmitted) < t.opts.SlowStart
	if r.strikes < t.opts.MaxFailures && !probation {
		return
	}
	t.eject(in, r, false, false, reason)
}

// Eject ejects an instance that cannot be connected to.
func (t *Tracker) Eject(in *instance.Instance, reason string) { t.ejectHard(in, time.Time{}, reason) }

// ejectHard ejects an instance whose core has hung since hungSince, or, if that is zero, one that
// cannot be connected to. A hung instance may still answer, like a silent one, so legs that no
// other instance can take over go on waiting.
func (t *Tracker) ejectHard(in *instance.Instance, hungSince time.Time, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	r := t.find(in)
	if r == nil || r.ejected && r.hard {
		return
	}
	hung := !hungSince.IsZero()
	if hung {
		r.silentSince, r.trial = hungSince, true
	}
	t.eject(in, r, true, !hung, reason)
}

// eject ejects an instance and starts its recovery. The caller holds the lock. dead is passed to
// OnEject.
func (t *Tracker) eject(in *instance.Instance, r *record, hard, dead bool, reason string) {
	already := r.ejected
	r.eject(hard, reason, t.forgiveAfter())
	t.opts.Log.WithFields(logrus.Fields{"instance": in.Key.String(), "reason": reason, "hard": hard}).
		Warn("instance ejected until it answers again")
	if !already {
		back := &recovery{t: t, key: in.Key, record: r}
		t.work.Go(back.run)
	}
	t.work.Go(func() { t.opts.OnEject(in.Key, dead, reason) })
}
