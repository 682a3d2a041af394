package health

import (
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// A busy machine makes a healthy engine silent for seconds, so a constant limit alone would
// eject engines that would have answered. An instance is therefore compared with its
// peers. It is ejected only while another instance that could take its requests responds, and
// only after a limit that grows with the recent response times of the peers and of the
// instance. While no instance responds, none is ejected: requests wait within their own
// limits.

const (
	// badAnswers is the number of probes in a row that must be refused, or answered with an error,
	// until the instance is ejected.
	badAnswers = 3
	// checkInterval is the time between two checks of a silent instance.
	checkInterval = 100 * time.Millisecond
	// historyFactor multiplies the time of the instance's slowest remembered answer; the product, up
	// to longestLimit, is another least limit.
	historyFactor = 2
	longestLimit  = 10 * time.Second
	// complainEvery is the least time between two log entries about probes that could not be sent:
	// the reason holds for all instances, and they are probed each second.
	complainEvery = 10 * time.Second
)

// Suspect checks an instance that keeps requests waiting without a byte of an answer. It probes the
// API server, and ejects the instance if that does not answer while a peer does. It also watches
// the progress of the core. While a check is under way, further calls do nothing.
func (t *Tracker) Suspect(in *instance.Instance) {
	if !t.Available(in.Key) {
		return
	}
	t.watchProgress(in)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	r := t.find(in)
	if r == nil || r.suspected || r.ejected {
		return
	}
	r.suspected, r.silentSince = true, time.Now()
	w := &silenceWatch{
		t: t, in: in, record: r, since: r.silentSince, received: t.opts.Received(in.Key), probed: make(chan error, 1),
		peers: peers{t: t, of: in, probed: map[instance.Key]uint64{}, answers: make(chan peerAnswer, maxPeers)},
	}
	t.work.Go(func() {
		v, why := w.run()
		t.conclude(w, v, why)
	})
}

// conclude applies the verdict about a silent instance.
func (t *Tracker) conclude(w *silenceWatch, v verdict, why string) {
	in, r := w.in, w.record
	if v == notSent {
		t.complaints.Do(func() {
			t.opts.Log.WithError(errors.New(why)).WithField("instance", in.Key.String()).Warn("a silent instance could not be probed")
		})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r.suspected = false
	if t.byAddress[in.Address] != r {
		return // it left, or another incarnation is at its address
	}
	if v == alive {
		t.history.remember(in.Address, time.Since(w.since))
	}
	if v != silent && r.silentSince.Equal(w.since) { // else it belongs to a hung core
		r.silentSince = time.Time{}
	}
	switch {
	case v == silent || v == failing:
		if !t.closed && (!r.ejected || !r.hard) {
			t.eject(in, r, true, v == failing, why)
		}
	case r.strikes+len(r.models) == 0 && r.readmitted.IsZero() && !r.ejected && r.suspended == "":
		t.forget(in.Key)
	}
}

type verdict int

const (
	alive     verdict = iota // it responded
	silent                   // it did not respond, and a peer did
	failing                  // it refuses connections or answers with errors
	notSent                  // the probe could not be sent
	undecided                // it left, or the Tracker is being closed
)

// silenceWatch follows one silent instance until there is a verdict.
type silenceWatch struct {
	t         *Tracker
	in        *instance.Instance
	record    *record
	since     time.Time // start of the silence, plus the time in which this process did not run
	received  uint64    // Options.Received at the start
	probed    chan error
	badProbes int
	peers     peers
	logged    bool // it was logged that no peer answers
}

// run probes the instance and some of its peers repeatedly, and checks the results at every
// checkInterval.
func (w *silenceWatch) run() (verdict, string) {
	w.probe()
	w.peers.probe(w.since)
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-w.t.ctx.Done():
			return undecided, ""
		case err := <-w.probed:
			if v, why, done := w.answered(err); done {
				return v, why
			}
		case a := <-w.peers.answers:
			w.peers.answered(a, time.Now())
		case now := <-tick.C:
			// A process that was stopped or got no processor time has received
			// nothing: that time does not count against the instance.
			if missed := now.Sub(last) - checkInterval; missed > 2*checkInterval {
				w.excludeTime(missed)
			}
			last = now
			if v, why, done := w.check(now); done {
				return v, why
			}
		}
	}
}

// excludeTime subtracts time from the silence.
func (w *silenceWatch) excludeTime(by time.Duration) {
	w.since = w.since.Add(by)
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	w.record.silentSince = w.since
}

func (w *silenceWatch) probe() {
	w.t.work.Go(func() { w.probed <- w.t.probe(w.in) })
}

// answered handles the end of a probe of the instance itself.
func (w *silenceWatch) answered(err error) (verdict, string, bool) {
	switch {
	case err == nil:
		return alive, "", true
	case w.t.ctx.Err() != nil:
		return undecided, "", true
	case errors.Is(err, ErrNotSent):
		return notSent, err.Error(), true
	case errors.Is(err, ErrNoAnswer):
		w.badProbes = 0
	default:
		if w.badProbes++; w.badProbes >= badAnswers {
			return failing, "no response: " + err.Error(), true
		}
	}
	w.probe()
	return 0, "", false
}

// check detects responses other than answers to probes, and the end of the limit.
func (w *silenceWatch) check(now time.Time) (verdict, string, bool) {
	if w.t.opts.Received(w.in.Key) != w.received {
		return alive, "", true
	}
	if w.t.current(w.t.opts.Source.Snapshot(), w.in.Key, w.record) == nil {
		return undecided, "", true
	}
	w.peers.observe(now)
	silentFor, limit := now.Sub(w.since), w.limit()
	if silentFor >= limit && w.peers.quickest > 0 && now.Sub(w.peers.lastAnswer) <= limit/2+2*checkInterval {
		return silent, fmt.Sprintf("silent: no response for %s, while others answer", silentFor.Round(checkInterval)), true
	}
	// An early answer of a peer proves nothing later: the whole machine may have
	// stopped since.
	if w.peers.pending == 0 && now.Sub(w.peers.probedAt) >= min(max(w.t.opts.SilenceLimit, silentFor)/2, longestLimit) {
		w.peers.probe(now)
	}
	if silentFor > longestLimit && !w.logged {
		w.logged = true
		w.t.opts.Log.WithFields(logrus.Fields{"instance": w.in.Key.String(), "silent": silentFor.Round(checkInterval)}).
			Warn("instance does not respond, and neither does any instance that could take its requests: they wait within their own limits")
	}
	return 0, "", false
}

// limit returns how long the instance may be silent while peers answer.
func (w *silenceWatch) limit() time.Duration {
	own, peers := historyFactor*w.t.history.slowest(w.in.Address), peerFactor*w.peers.quickest
	return max(w.t.opts.SilenceLimit, w.peers.least, min(max(own, peers), longestLimit))
}
