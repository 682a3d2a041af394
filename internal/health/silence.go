package health

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Silence is relative. A busy machine makes a healthy engine silent for
// seconds, so a constant limit alone ejects engines that would have answered.
// An instance is therefore judged beside its peers: it is ejected only while
// another instance that could take its requests gives a sign of life, and only
// after a limit that grows with what the peers and the instance itself needed
// lately. While nobody gives a sign of life, nobody is ejected: requests wait
// within their own limits.

const (
	// badAnswers is how many probes in a row an instance may refuse or answer
	// with an error.
	badAnswers = 3
	// peersAsked bounds the probes of other instances for one silent instance.
	peersAsked = 3
	// checkInterval is the time between two looks at a silent instance.
	checkInterval = 100 * time.Millisecond
	// peerFactor times the quickest answer of a peer is waited for at least.
	peerFactor = 4
	// historyFactor times the slowest answer of its own that is remembered is
	// waited for, but not more than longestLimit in all.
	historyFactor = 2
	longestLimit  = 10 * time.Second
	// prefillLimit is the least limit for the last prefill instance where decode
	// instances can compute prompts themselves: they are no peers in speed.
	prefillLimit = 5 * time.Second
	// historyLasts is how long a slow answer is remembered.
	historyLasts = 5 * time.Minute
)

// slowAnswer is an answer that was late: how late, and when it came.
type slowAnswer struct {
	took time.Duration
	at   time.Time
}

// Suspect asks an instance that keeps requests waiting for a sign of life. It
// ejects the instance if none comes while a peer gives one. Calls during that
// time do nothing.
func (t *Tracker) Suspect(in *instance.Instance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	r := t.record(in)
	if r.suspected || r.ejected {
		return
	}
	r.suspected, r.silentSince = true, time.Now()
	t.work.Go(func() {
		w := t.newWatch(in, r)
		v, why := w.run()
		t.conclude(w, v, why)
	})
}

// SilentFor tells how long an instance has given no sign of life since it was
// asked for one; 0 if it is not asked, or has answered.
func (t *Tracker) SilentFor(k instance.Key) time.Duration {
	if !t.Trouble() {
		return 0
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.records[k.Address]
	if r == nil || r.silentSince.IsZero() {
		return 0
	}
	return time.Since(r.silentSince)
}

// Silent tells that the instance is ejected because it gave no sign of life.
// Unlike one that refuses connections it may answer a request later.
func (t *Tracker) Silent(k instance.Key) bool {
	if !t.Trouble() {
		return false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.records[k.Address]
	return r != nil && r.ejected && r.hard && !r.silentSince.IsZero()
}

// conclude books what came of asking a silent instance.
func (t *Tracker) conclude(w *silenceWatch, v verdict, why string) {
	in, r := w.in, w.record
	if v == nobodyAsked {
		t.logNotAsked(in.Key, errors.New(why))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r.suspected = false
	if t.records[in.Address] != r {
		return // it left, or another life stands at its address
	}
	if v == alive {
		t.rememberSlow(in.Key, time.Since(w.since))
	}
	if v != silent {
		r.silentSince = time.Time{}
	}
	switch {
	case v == silent || v == failing:
		if !t.closed && (!r.ejected || !r.hard) {
			t.eject(in, r, true, v == failing, why)
		}
	case r.strikes == 0 && r.readmitted.IsZero() && !r.ejected:
		t.forget(in.Key)
	}
}

// rememberSlow keeps a slow answer, so that the instance is given more time when
// it is silent again; the lock is held.
func (t *Tracker) rememberSlow(k instance.Key, took time.Duration) {
	now := time.Now()
	for address, s := range t.history {
		if now.Sub(s.at) > historyLasts {
			delete(t.history, address)
		}
	}
	if took > checkInterval && took > t.history[k.Address].took {
		t.history[k.Address] = slowAnswer{took, now}
	}
}

// slowest is the slowest answer of an instance that is remembered.
func (t *Tracker) slowest(k instance.Key) time.Duration {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if s, ok := t.history[k.Address]; ok && time.Since(s.at) <= historyLasts {
		return s.took
	}
	return 0
}

type verdict int

const (
	alive       verdict = iota // it gave a sign of life
	silent                     // it did not, and a peer did
	failing                    // it refuses connections or answers with errors
	nobodyAsked                // the question could not be put
	undecided                  // it left, or the Tracker is being closed
)

// silenceWatch follows one silent instance until there is a verdict.
type silenceWatch struct {
	t         *Tracker
	in        *instance.Instance
	record    *record
	since     time.Time // when it was asked; moved on by the time in which this process did not run
	heard     uint64    // of it, when it was asked
	probed    chan error
	badProbes int
	minLimit  time.Duration // limit that its peers allow

	peers        map[instance.Key]uint64 // those asked last, and what was heard of them before
	pending      int                     // questions to peers that are not answered yet
	peersAskedAt time.Time               // when peers were asked last
	peerAnswers  chan peerAnswer
	quickestPeer time.Duration // the quickest answer of a peer in the worst round, 0 for none
	lastPeerSign time.Time     // when a peer gave its last sign of life
	logged       bool          // that nobody answers
}

type peerAnswer struct {
	took time.Duration
	err  error
}

func (t *Tracker) newWatch(in *instance.Instance, r *record) *silenceWatch {
	return &silenceWatch{
		t: t, in: in, record: r, since: r.silentSince, heard: t.opts.Heard(in.Key), probed: make(chan error, 1),
		peers: map[instance.Key]uint64{}, peerAnswers: make(chan peerAnswer, peersAsked),
	}
}

// run asks the instance and some peers at once, again and again, and looks
// every tenth of a second at what is known.
func (w *silenceWatch) run() (verdict, string) {
	w.probe()
	w.askPeers(w.since)
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
		case a := <-w.peerAnswers:
			w.peerAnswered(a, time.Now())
		case now := <-tick.C:
			// A process that was stopped or starved has heard nobody: that time
			// does not count against the instance.
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

// excludeTime takes time out of the silence.
func (w *silenceWatch) excludeTime(by time.Duration) {
	w.since = w.since.Add(by)
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	w.record.silentSince = w.since
}

func (w *silenceWatch) probe() {
	w.t.work.Go(func() { w.probed <- w.t.probe(w.in) })
}

// answered deals with the end of a probe of the instance itself.
func (w *silenceWatch) answered(err error) (verdict, string, bool) {
	switch {
	case err == nil:
		return alive, "", true
	case w.t.ctx.Err() != nil:
		return undecided, "", true
	case errors.Is(err, ErrNotAsked):
		return nobodyAsked, err.Error(), true
	case errors.Is(err, ErrNoAnswer):
		w.badProbes = 0
	default:
		if w.badProbes++; w.badProbes >= badAnswers {
			return failing, "no sign of life: " + err.Error(), true
		}
	}
	w.probe()
	return 0, "", false
}

// check is where time passes: it sees signs of life that are no answers to
// probes, and the end of patience.
func (w *silenceWatch) check(now time.Time) (verdict, string, bool) {
	if w.t.opts.Heard(w.in.Key) != w.heard {
		return alive, "", true
	}
	if w.t.findLife(w.t.opts.Source.Snapshot(), w.in.Key, w.record) == nil {
		return undecided, "", true
	}
	w.hearPeers(now)
	silentFor, limit := now.Sub(w.since), w.limit()
	if silentFor >= limit && w.quickestPeer > 0 && now.Sub(w.lastPeerSign) <= limit/2+2*checkInterval {
		return silent, fmt.Sprintf("silent: no sign of life for %s, while others answer", silentFor.Round(checkInterval)), true
	}
	// What a peer said at the beginning is no proof for the end: the whole
	// machine may have stopped since.
	if w.pending == 0 && now.Sub(w.peersAskedAt) >= min(max(w.t.opts.SilenceLimit, silentFor)/2, longestLimit) {
		w.askPeers(now)
	}
	if silentFor > longestLimit && !w.logged {
		w.logged = true
		w.t.opts.Log.WithFields(logrus.Fields{"instance": w.in.Key.String(), "silent": silentFor.Round(checkInterval)}).
			Warn("an instance gives no sign of life, and nobody who could take its requests does: they wait within their own limits")
	}
	return 0, "", false
}

// limit is how long the instance may be silent while peers answer.
func (w *silenceWatch) limit() time.Duration {
	own := min(historyFactor*w.t.slowest(w.in.Key), longestLimit)
	beside := min(peerFactor*w.quickestPeer, longestLimit)
	return max(w.t.opts.SilenceLimit, w.minLimit, beside, own)
}

// askPeers asks some instances that could take the requests of this one.
func (w *silenceWatch) askPeers(now time.Time) {
	list, least := w.t.peers(w.in)
	w.minLimit, w.peersAskedAt = least, now
	clear(w.peers)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, peer := range list[:min(len(list), peersAsked)] {
		w.peers[peer.Key] = w.t.opts.Heard(peer.Key)
		w.pending++
		w.t.work.Go(func() {
			err := w.t.probe(peer)
			w.peerAnswers <- peerAnswer{time.Since(now), err}
		})
	}
}

// peerAnswered takes the end of a probe of a peer. Of those that were asked
// together the first answer is the quickest.
func (w *silenceWatch) peerAnswered(a peerAnswer, now time.Time) {
	w.pending--
	if a.err != nil {
		return
	}
	if w.lastPeerSign.Before(w.peersAskedAt) || w.quickestPeer == 0 {
		w.quickestPeer = max(w.quickestPeer, a.took, 1)
	}
	w.lastPeerSign = now
}

// hearPeers takes an answer that a peer gave to a request for a sign of life.
func (w *silenceWatch) hearPeers(now time.Time) {
	for k, before := range w.peers {
		if heard := w.t.opts.Heard(k); heard != before {
			w.peers[k], w.lastPeerSign = heard, now
			w.quickestPeer = max(w.quickestPeer, 1)
		}
	}
}

// peers are the instances that could take the requests of this one, and the
// least time that it is given beside them.
func (t *Tracker) peers(in *instance.Instance) (list []*instance.Instance, least time.Duration) {
	snap := t.opts.Source.Snapshot()
	of := func(role instance.Role) []*instance.Instance {
		var out []*instance.Instance
		for _, p := range snap.Usable(role) {
			if p.Address != in.Address && t.Available(p.Key) {
				out = append(out, p)
			}
		}
		return out
	}
	if list = of(in.Role); len(list) > 0 {
		return list, 0
	}
	if in.Role == instance.Prefill && t.opts.PrefillOptional {
		return of(instance.Decode), prefillLimit
	}
	return nil, 0
}

// complainEvery keeps the log readable: what keeps one question from being put keeps
// all of them, and they are tried each second.
const complainEvery = 10 * time.Second

// logNotAsked tells now and then that instances could not be asked.
func (t *Tracker) logNotAsked(k instance.Key, err error) {
	t.mu.Lock()
	silent := !t.lastComplaint.IsZero() && time.Since(t.lastComplaint) < complainEvery
	if !silent {
		t.lastComplaint = time.Now()
	}
	t.mu.Unlock()
	if !silent {
		t.opts.Log.WithError(err).WithField("instance", k.String()).Warn("an instance that is silent could not be asked for a sign of life")
	}
}
