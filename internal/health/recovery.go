package health

import (
	"math/rand/v2"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// recovery brings one ejected engine back.
type recovery struct {
	t      *Tracker
	key    instance.Key
	record *record
}

// run waits and probes until the engine answers, and readmits it.
func (rc *recovery) run() {
	pause := rc.t.opts.ProbeInterval
	timer := time.NewTimer(max(rc.ejectionTime(), pause))
	defer timer.Stop()
	for {
		snap := rc.t.opts.Source.Snapshot()
		now := rc.t.life(snap, rc.key, rc.record)
		if now == nil {
			rc.t.end(rc.key, rc.record)
			return
		}
		select {
		case <-rc.t.probes.ctx.Done():
			return
		case <-snap.Changed():
			continue
		case <-timer.C:
		}
		if rc.t.probes.ask(now) == nil {
			rc.readmit()
			return
		}
		pause = min(2*pause, rc.t.opts.MaxProbeInterval)
		timer.Reset(pause/2 + rand.N(pause/2+1))
	}
}

// ejectionTime is the least time that the ejection lasts.
func (rc *recovery) ejectionTime() time.Duration {
	rc.t.mu.RLock()
	defer rc.t.mu.RUnlock()
	if rc.record.hard {
		return 0
	}
	d := rc.t.opts.Ejection << min(rc.record.ejections-1, 20)
	if d <= 0 || d > rc.t.opts.MaxEjection {
		d = rc.t.opts.MaxEjection
	}
	return d/2 + rand.N(d/2+1)
}

func (rc *recovery) readmit() {
	rc.t.mu.Lock()
	defer rc.t.mu.Unlock()
	r := rc.record
	if !r.silentSince.IsZero() {
		rc.t.history.remember(rc.key.Address, min(time.Since(r.silentSince), longestLimit))
	}
	r.readmit()
	rc.t.opts.Log.WithFields(logrus.Fields{"instance": rc.key.String(), "out": time.Since(r.since).Round(time.Millisecond)}).
		Info("instance readmitted: it answers again")
}
