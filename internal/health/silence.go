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
	// look is the time between two looks at a silent instance.
	look = 100 * time.Millisecond
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
	if r.suspected || r.out {
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
	return r != nil && r.out && r.hard && !r.silentSince.IsZero()
}

// conclude books what came of asking a silent instance.
func (t *Tracker) conclude(w *silenceWatch, v verdict, why string) {
	in, r := w.in, w.record
	if v == nobodyAsked {
		t.complain(in.Key, errors.New(why))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r.suspected = false
	if t.records[in.Address] != r {
		return // it left, or another life stands at its address
	}
	if v == alive {
		t.remember(in.Key, time.Since(w.since))
	}
	if v != silent {
		r.silentSince = time.Time{}
	}
	switch {
	case v == silent || v == failing:
		if !t.closed && (!r.out || !r.hard) {
			t.eject(in, r, true, v == failing, why)
		}
	case r.strikes == 0 && r.back.IsZero() && !r.out:
		t.forget(in.Key)
	}
}

// remember keeps a slow answer, so that the instance is given more time when
// it is silent again; the lock is held.
func (t *Tracker) remember(k instance.Key, took time.Duration) {
	now := time.Now()
	for address, s := range t.history {
		if now.Sub(s.at) > historyLasts {
			delete(t.history, address)
		}
	}
	if took > look && took > t.history[k.Address].took {
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
	t      *Tracker
	in     *instance.Instance
	record *record
	since  time.Time // when it was asked; moved on by the time in which this process did not run
	heard  uint64    // of it, when it was asked
	own    chan error
	bad    int
	least  time.Duration // limit that its peers allow

	peers   map[instance.Key]uint64 // those asked last, and what was heard of them before
	pending int                     // questions to peers that are not answered yet
	asked   time.Time               // when peers were asked last
	answers chan peerAnswer
	quick   time.Duration // the quickest answer of a peer in the worst round, 0 for none
	seen    time.Time     // when a peer gave its last sign of life
	told    bool          // that nobody answers
}

type peerAnswer struct {
	took time.Duration
	err  error
}

func (t *Tracker) newWatch(in *instance.Instance, r *record) *silenceWatch {
	return &silenceWatch{
		t: t, in: in, record: r, since: r.silentSince, heard: t.o.Heard(in.Key), own: make(chan error, 1),
		peers: map[instance.Key]uint64{}, answers: make(chan peerAnswer, peersAsked),
	}
}

// run asks the instance and some peers at once, again and again, and looks
// every tenth of a second at what is known.
func (w *silenceWatch) run() (verdict, string) {
	w.ask()
	w.askPeers(w.since)
	tick := time.NewTicker(look)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-w.t.ctx.Done():
			return undecided, ""
		case err := <-w.own:
			if v, why, done := w.answered(err); done {
				return v, why
			}
		case a := <-w.answers:
			w.peerAnswered(a, time.Now())
		case now := <-tick.C:
			// A process that was stopped or starved has heard nobody: that time
			// does not count against the instance.
			if missed := now.Sub(last) - look; missed > 2*look {
				w.moveOn(missed)
			}
			last = now
			if v, why, done := w.look(now); done {
				return v, why
			}
		}
	}
}

// moveOn takes time out of the silence.
func (w *silenceWatch) moveOn(by time.Duration) {
	w.since = w.since.Add(by)
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	w.record.silentSince = w.since
}

func (w *silenceWatch) ask() {
	w.t.work.Go(func() { w.own <- w.t.ask(w.in) })
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
		w.bad = 0
	default:
		if w.bad++; w.bad >= badAnswers {
			return failing, "no sign of life: " + err.Error(), true
		}
	}
	w.ask()
	return 0, "", false
}

// look is where time passes: it sees signs of life that are no answers to
// probes, and the end of patience.
func (w *silenceWatch) look(now time.Time) (verdict, string, bool) {
	if w.t.o.Heard(w.in.Key) != w.heard {
		return alive, "", true
	}
	if w.t.lives(w.t.o.Source.Snapshot(), w.in.Key, w.record) == nil {
		return undecided, "", true
	}
	w.hearPeers(now)
	silentFor, limit := now.Sub(w.since), w.limit()
	if silentFor >= limit && w.quick > 0 && now.Sub(w.seen) <= limit/2+2*look {
		return silent, fmt.Sprintf("silent: no sign of life for %s, while others answer", silentFor.Round(look)), true
	}
	// What a peer said at the beginning is no proof for the end: the whole
	// machine may have stopped since.
	if w.pending == 0 && now.Sub(w.asked) >= min(max(w.t.o.SilenceLimit, silentFor)/2, longestLimit) {
		w.askPeers(now)
	}
	if silentFor > longestLimit && !w.told {
		w.told = true
		w.t.o.Log.WithFields(logrus.Fields{"instance": w.in.Key.String(), "silent": silentFor.Round(look)}).
			Warn("an instance gives no sign of life, and nobody who could take its requests does: they wait within their own limits")
	}
	return 0, "", false
}

// limit is how long the instance may be silent while peers answer.
func (w *silenceWatch) limit() time.Duration {
	own := min(historyFactor*w.t.slowest(w.in.Key), longestLimit)
	beside := min(peerFactor*w.quick, longestLimit)
	return max(w.t.o.SilenceLimit, w.least, beside, own)
}

// askPeers asks some instances that could take the requests of this one.
func (w *silenceWatch) askPeers(now time.Time) {
	list, least := w.t.peers(w.in)
	w.least, w.asked = least, now
	clear(w.peers)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, peer := range list[:min(len(list), peersAsked)] {
		w.peers[peer.Key] = w.t.o.Heard(peer.Key)
		w.pending++
		w.t.work.Go(func() {
			err := w.t.ask(peer)
			w.answers <- peerAnswer{time.Since(now), err}
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
	if w.seen.Before(w.asked) || w.quick == 0 {
		w.quick = max(w.quick, a.took, 1)
	}
	w.seen = now
}

// hearPeers takes an answer that a peer gave to a request for a sign of life.
func (w *silenceWatch) hearPeers(now time.Time) {
	for k, before := range w.peers {
		if heard := w.t.o.Heard(k); heard != before {
			w.peers[k], w.seen = heard, now
			w.quick = max(w.quick, 1)
		}
	}
}

// peers are the instances that could take the requests of this one, and the
// least time that it is given beside them.
func (t *Tracker) peers(in *instance.Instance) (list []*instance.Instance, least time.Duration) {
	snap := t.o.Source.Snapshot()
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
	if in.Role == instance.Prefill && t.o.PrefillOptional {
		return of(instance.Decode), prefillLimit
	}
	return nil, 0
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
