package health

import (
	"errors"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// silentProbes is how many probes in a row an instance may leave unanswered.
const silentProbes = 3

// Suspect asks an instance that has been silent for a sign of life, and ejects
// it if none comes. While that goes on more calls do nothing.
func (t *Tracker) Suspect(in *instance.Instance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	r := t.record(in)
	if r.suspected || r.out {
		return
	}
	r.suspected = true
	t.work.Go(func() {
		err := t.askThrice(in)
		asked := !errors.Is(err, ErrNotAsked)
		t.mu.Lock()
		r.suspected = false
		if (err == nil || !asked) && r.strikes == 0 && r.back.IsZero() && !r.out && t.records[in.Key] == r {
			t.forget(in.Key)
		}
		t.mu.Unlock()
		switch {
		case err == nil || t.ctx.Err() != nil:
		case asked:
			t.Eject(in, "silent: no sign of life in three probes")
		default: // until whoever suspects it does so again
			t.complain(in.Key, err)
		}
	})
}

// complainEvery keeps the log readable: what keeps one question from being put keeps
// all of them, and they are tried each second.
const complainEvery = 10 * time.Second

// complain tells now and then that instances could not be asked.
func (t *Tracker) complain(k instance.Key, err error) {
	t.mu.Lock()
	silent := !t.complained.IsZero() && time.Since(t.complained) < complainEvery
	if !silent {
		t.complained = time.Now()
	}
	t.mu.Unlock()
	if !silent {
		t.o.Log.WithError(err).WithField("instance", k.String()).Warn("an instance that is silent could not be asked for a sign of life")
	}
}

// askThrice asks until there is a sign of life, or silentProbes questions in a row
// have brought none. Once a question cannot be put it asks no more.
func (t *Tracker) askThrice(in *instance.Instance) (err error) {
	for range silentProbes {
		if err = t.ask(in); err == nil || t.ctx.Err() != nil || errors.Is(err, ErrNotAsked) {
			break
		}
	}
	return err
}
