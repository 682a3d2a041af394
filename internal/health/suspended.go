package health

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrNoRoute is wrapped by errors of Options.Suspended when the engine does not report whether
// it is suspended: vLLM has those routes with VLLM_SERVER_DEV_MODE=1 only, and without them no
// request can suspend it.
var ErrNoRoute = errors.New("no such route")

// CheckSuspended queries whether an engine sleeps or is paused. While it is, it is not picked, and
// it is queried again every MaxProbeInterval. An engine without the routes is queried once in each
// incarnation. vLLM's API server queries the core, so a missing answer is no evidence: the core
// may hang.
func (t *Tracker) CheckSuspended(ctx context.Context, in *instance.Instance) {
	if t.opts.Suspended == nil || t.cores.withoutRoutes(in) {
		return
	}
	state, err := t.opts.Suspended(ctx, in)
	switch {
	case errors.Is(err, ErrNoRoute):
		t.cores.noteNoRoutes(in, t.opts.Source.Snapshot())
	case err != nil:
		return // the state does not change
	}
	t.setSuspended(in, state)
}

// setSuspended records the state of an engine, "" for none.
func (t *Tracker) setSuspended(in *instance.Instance, state instance.View) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byAddress[in.Address]
	if t.closed || state == "" && (r == nil || r.suspended == "") || r != nil && r.suspended == state {
		return
	}
	if r = t.find(in); r == nil {
		return
	}
	was := r.suspended
	r.suspended = state
	log := t.opts.Log.WithFields(logrus.Fields{"instance": in.Key.String(), "state": string(state)})
	switch {
	case state == "":
		r.readmitted = time.Now()
		log.Info("engine resumed")
		return
	case was == "":
		t.work.Go(func() { t.awaitResumed(in, r) })
	}
	log.Warn("engine suspended: not picked until it resumes")
	t.work.Go(func() { t.opts.OnEject(in.Key, false, "the engine is "+string(state)) })
}

// awaitResumed polls a suspended engine until it has resumed or left.
func (t *Tracker) awaitResumed(in *instance.Instance, r *record) {
	back := &recovery{t: t, key: in.Key, record: r}
	for {
		if _, ok := back.wait(t.opts.MaxProbeInterval, nil); !ok {
			return
		}
		ctx, cancel := context.WithTimeout(t.ctx, t.opts.ProbeTimeout)
		t.CheckSuspended(ctx, in)
		cancel()
		if t.View(in.Key) != instance.Sleeping && t.View(in.Key) != instance.Paused {
			return
		}
	}
}
