// Package health is this proxy's own opinion of instances, from its requests and its probes.
// It is never written to etcd: one proxy's broken route must not take an instance from
// the others.
//
//	requests: cannot connect ─────────────▶ out (hard) ──probe──▶ slow start ─▶ in
//	          fails where others serve ─▶ strikes ─▶ out (soft) ──time, probe──┘
//	silence:  no sign of life, while others give one ─▶ out (hard)
//
// Picks read the records, and reports to the Tracker change them. An engine that is out has a
// recovery, one that is suspected of silence a silenceWatch; both ask it by probes.
package health

import (
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Tracker takes reports about instances and does what follows from them: it ejects instances,
// readmits them and asks silent ones for a sign of life. It is safe for concurrent use.
type Tracker struct {
	Records // what picks ask

	opts    Options
	history history
	probes  *probes
	cores   cores
}

// New builds a Tracker; Close ends its probes.
func New(o Options) *Tracker {
	o.setDefaults()
	return &Tracker{
		Records: Records{source: o.Source, slowStart: o.SlowStart, byAddress: map[string]*record{}},
		opts:    o, history: history{slow: map[string]slowAnswer{}}, probes: newProbes(&o),
		cores: cores{byAddress: map[string]*core{}},
	}
}

// Close stops the probes and waits for them.
func (t *Tracker) Close() {
	t.Records.close()
	t.probes.close()
}

// Success clears the strikes of an instance that served.
func (t *Tracker) Success(in *instance.Instance) {
	if !t.Trouble() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byAddress[in.Address]
	if r == nil || r.ejected {
		return
	}
	r.strikes = 0
	if !r.suspected && (r.readmitted.IsZero() || time.Since(r.readmitted) > t.forgiveAfter()) {
		t.forget(in.Key)
	}
}

// forgiveAfter is how long an instance must serve well until its ejections are forgotten.
func (t *Tracker) forgiveAfter() time.Duration { return max(t.opts.SlowStart, 2*t.opts.MaxEjection) }

// Strike counts a failure of an instance on a request that another one served. Enough of
// them in a row eject it; while it starts slowly after an ejection a single one does.
func (t *Tracker) Strike(in *instance.Instance, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	r := t.find(in)
	if r.ejected {
		return
	}
	r.strikes++
	probation := !r.readmitted.IsZero() && time.Since(r.readmitted) < t.opts.SlowStart
	if r.strikes < t.opts.MaxFailures && !probation {
		return
	}
	t.eject(in, r, false, false, reason)
}

// Eject takes out an instance that cannot be connected to.
func (t *Tracker) Eject(in *instance.Instance, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	r := t.find(in)
	if r.ejected && r.hard {
		return
	}
	t.eject(in, r, true, true, reason)
}

// eject takes an instance out and starts its recovery; the lock is held. dead is that of
// OnEject.
func (t *Tracker) eject(in *instance.Instance, r *record, hard, dead bool, reason string) {
	already := r.ejected
	r.eject(hard, reason, t.forgiveAfter())
	t.opts.Log.WithFields(logrus.Fields{"instance": in.Key.String(), "reason": reason, "hard": hard}).
		Warn("instance ejected until it answers again")
	if !already {
		back := &recovery{t: t, key: in.Key, record: r}
		t.probes.work.Go(back.run)
	}
	t.probes.work.Go(func() { t.opts.OnEject(in.Key, dead, reason) })
}
