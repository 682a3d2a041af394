package health

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// A busy machine makes a healthy engine silent for seconds, so a constant limit alone would
// eject engines that would have answered. An instance is therefore compared with its
// peers. It is ejected only while another instance that could take its requests gives a
// sign of life, and only after a limit that grows with how long the peers and the instance
// itself took to answer lately. While no instance gives a sign of life, none is ejected:
// requests wait within their own limits.

const (
	// badAnswers is how many probes in a row must be refused, or answered with an error,
	// until the instance is ejected.
	badAnswers = 3
	// peersAsked is how many peers at most are probed at once for one silent instance.
	peersAsked = 3
	// checkInterval is the time between two checks of a silent instance.
	checkInterval = 100 * time.Millisecond
	// peerFactor times the time of a peer's quickest answer is the least limit.
	peerFactor = 4
	// historyFactor times the time of the instance's own slowest answer that is
	// remembered is the least limit, too, but no more than longestLimit.
	historyFactor = 2
	longestLimit  = 10 * time.Second
	// prefillLimit is the least limit for the last prefill instance where decode
	// instances are its peers: they can do its work, but not as fast.
	prefillLimit = 5 * time.Second
	// historyLasts is how long a slow answer is remembered.
	historyLasts = 5 * time.Minute
)

// slowAnswer is a late answer: how long it took, and when it came.
type slowAnswer struct {
	took time.Duration
	at   time.Time
}

// Suspect asks an instance that keeps requests waiting for a sign of life, and ejects it if
// none comes while a peer gives one. Until that is decided further calls do nothing.
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

// Silent tells that the instance is ejected because it gave no sign of life. Unlike one
// that refuses connections it may still answer a request.
func (t *Tracker) Silent(k instance.Key) bool {
	if !t.Trouble() {
		return false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.records[k.Address]
	return r != nil && r.ejected && r.hard && !r.silentSince.IsZero()
}

// conclude acts on the verdict about a silent instance.
func (t *Tracker) conclude(w *silenceWatch, v verdict, why string) {
	in, r := w.in, w.record
	if v == nobodyAsked {
		t.logNotAsked(in.Key, errors.New(why))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r.suspected = false
	if t.records[in.Address] != r {
		return // it left, or another incarnation is at its address
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

// rememberSlow remembers a slow answer, so that the instance gets more time when it is
// silent again; the lock is held.
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

// slowest is the time of the slowest answer that is remembered of an instance.
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
	silent                     // it gave none, and a peer did
	failing                    // it refuses connections or answers with errors
	nobodyAsked                // the probe could not be sent
	undecided                  // it left, or the Tracker is being closed
)

// silenceWatch follows one silent instance until there is a verdict.
type silenceWatch struct {
	t         *Tracker
	in        *instance.Instance
	record    *record
	since     time.Time // when it was asked, plus the time in which this process did not run
	heard     uint64    // Options.Heard of it, when it was asked
	probed    chan error
	badProbes int
	minLimit  time.Duration // the least limit, by which instances are its peers

	peers        map[instance.Key]uint64 // those asked last, with Options.Heard of each at that time
	pending      int                     // probes of peers that have not ended
	peersAskedAt time.Time               // when peers were asked last
	peerAnswers  chan peerAnswer
	quickestPeer time.Duration // the time of the quickest answer in the slowest round, 0 for none
	lastPeerSign time.Time     // when a peer gave the last sign of life
	logged       bool          // the log says that no peer answers
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

// run probes the instance and some peers at once, again and again, and checks at every
// checkInterval what is known.
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

// excludeTime takes time off the silence.
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

// check looks for signs of life that are no answers to probes, and for the end of the
// limit.
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
	// An early answer of a peer proves nothing later: the whole machine may have
	// stopped since.
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

// askPeers probes some instances that could take the requests of this one.
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

// peerAnswered handles the end of a probe of a peer. Of peers that were asked together the
// first answer is the quickest.
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

// hearPeers counts an answer that a peer gave to a request as a sign of life.
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

// complainEvery is the least time between two log entries that an instance could not be
// asked: the reason holds for all instances, and they are probed each second.
const complainEvery = 10 * time.Second

// logNotAsked logs now and then that instances could not be asked.
func (t *Tracker) logNotAsked(k instance.Key, err error) {
	t.mu.Lock()
	recent := !t.lastComplaint.IsZero() && time.Since(t.lastComplaint) < complainEvery
	if !recent {
		t.lastComplaint = time.Now()
	}
	t.mu.Unlock()
	if !recent {
		t.opts.Log.WithError(err).WithField("instance", k.String()).Warn("an instance that is silent could not be asked for a sign of life")
	}
}
