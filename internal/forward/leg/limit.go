package leg

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Limit is a time limit of the proxy for the next bytes of an answer. Comments and pings in a stream do
// not count.
type Limit struct {
	After   time.Duration
	Class   Class  // of the failure when the time is over
	Setting string // name of the setting, for operators
	// Firm limits do not move while the engine makes progress with other work, nor while the other
	// leg of a pair runs.
	Firm bool
}

// PrefillLimit returns the limit for the whole answer of a prefill instance.
func PrefillLimit(d time.Duration) Limit {
	return Limit{After: d, Class: PrefillTimeout, Setting: "--prefill-timeout"}
}

// FirstByteLimit returns the limit for the header of a stream.
func FirstByteLimit(d time.Duration) Limit {
	return Limit{After: d, Class: FirstByteTimeout, Setting: "--decode-first-byte-timeout"}
}

// NonStreamLimit returns the limit for the header of a non-streamed answer. An engine sends
// it when it has generated the whole answer.
func NonStreamLimit(d time.Duration) Limit {
	return Limit{After: d, Class: FirstByteTimeout, Setting: "--non-stream-timeout"}
}

// IdleLimit returns the limit between two reads of an answer.
func IdleLimit(d time.Duration) Limit {
	return Limit{After: d, Class: IdleTimeout, Setting: "--idle-timeout"}
}

// GraceLimit returns the limit for bytes that do not matter any more: the text of an error,
// or the end of a connection after the last event.
func GraceLimit(d time.Duration) Limit {
	l := IdleLimit(d)
	l.Firm = true
	return l
}

// NotifyLimit returns the limit from a prefill's answer to the last of its notifications.
func NotifyLimit(d time.Duration) Limit {
	return Limit{After: d, Class: NotNotified, Setting: "--lmcache-notify-timeout", Firm: true}
}

// ContinueLimit returns the limit from the loss of a stream's leg to its continuation on another one.
func ContinueLimit(d time.Duration) Limit {
	return Limit{After: d, Class: NotContinued, Setting: "a fixed limit", Firm: true}
}

// LimitError is the cause of a leg that a time limit of the proxy has ended.
type LimitError struct{ Limit Limit }

// Error names the limit and its setting.
func (e *LimitError) Error() string {
	what := map[Class]string{
		ConnectTimeout:   "no connection",
		PrefillTimeout:   "no prefill answer",
		FirstByteTimeout: "no byte of an answer",
		IdleTimeout:      "no further byte of the answer",
		NotNotified:      "no notification from every rank of prefill",
		NotContinued:     "no further token of the answer",
		TransferExpired:  "no content, and no proof that the KV cache was read,",
	}[e.Limit.Class]
	return fmt.Sprintf("%s for %s s (%s)", what, strconv.FormatFloat(e.Limit.After.Seconds(), 'f', -1, 64), e.Limit.Setting)
}

// Progress returns when the engine of an instance last made progress, with any request, and
// when its core was last observed to run, if only for a trial request. observable reports
// whether both can be observed. Progress must not block.
type Progress func(k instance.Key) (last, ran time.Time, observable bool)

// progress returns Settings.Progress for the leg's instance.
func (l *Leg) progress() (last, ran time.Time, observable bool) {
	if l.origin.Settings.Progress == nil {
		return time.Time{}, time.Time{}, false
	}
	return l.origin.Settings.Progress(l.Instance.Key)
}

// SetLimit replaces the limit, which starts now.
func (l *Leg) SetLimit(limit Limit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = limit
	l.waitsForPartner = l.waitsForPartner && !limit.Firm
	l.arm(limit.After)
}

// Rearm restarts the limit with the duration d.
func (l *Leg) Rearm(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit.After = d
	l.arm(d)
}

// arm starts the timer and begins to measure a new silence; l.mu is held.
func (l *Leg) arm(d time.Duration) {
	if l.doubt != nil {
		d = min(d, silenceStep)
	}
	l.silent, l.armed = 0, d
	if !l.waitsForPartner {
		l.reset(d)
	}
}

// reset sets the timer; l.mu is held.
func (l *Leg) reset(d time.Duration) {
	l.due = time.Now().Add(d)
	l.timer.Reset(d)
}

// PartnerDone ends Wait.Partner: the other leg of the pair is done, and this one waits only
// for its instance.
func (l *Leg) PartnerDone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.waitsForPartner {
		return
	}
	l.waitsForPartner = false
	if l.Err() == nil {
		l.arm(l.limit.After)
		if l.pick != nil && !l.committed {
			l.pick.Await(l, time.Now()) // legs that overtook it during the wait do not count
		}
	}
}

// ClearLimit removes the limit: time does not end the leg any more.
func (l *Leg) ClearLimit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	l.due = l.due.Add(math.MaxInt64)
}

// expire ends the leg unless its engine makes progress: then the leg still waits in the
// engine's queue, or for a batch of other requests. l.timer calls it.
func (l *Leg) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Either PartnerDone will start the timer, or the timer was set again just after it had fired.
	if l.waitsForPartner || l.Err() != nil || time.Now().Before(l.due) {
		return
	}
	if time.Since(l.due) > transferSlack { // this process was suspended, and has not read the bytes that arrived
		l.reset(min(l.armed, streamSilence))
		return
	}
	l.silent += l.armed
	switch s := l.origin.Settings; {
	case l.doubt == nil:
	case s.Available(l.Instance.Key) && s.Removed(l.pick) == nil: // the instance is back
		l.doubt = nil
		l.armed = max(l.limit.After-l.silent, silenceStep)
		l.reset(l.armed)
		return
	case l.silent < min(l.limit.After, streamSilence):
		l.reset(l.armed)
		return
	default:
		l.cancel(l.doubt)
		return
	}
	limit := l.limit
	last, _, observable := l.progress()
	if limit.Firm || !observable {
		l.cancel(&LimitError{limit})
		return
	}
	longest := Limit{After: l.origin.Settings.Busy, Class: limit.Class, Setting: "--busy-timeout"}
	if longest.After <= limit.After {
		longest = limit
	}
	stalled := max(time.Since(last), 0)
	switch {
	case l.silent >= longest.After:
		l.cancel(&LimitError{longest})
	case stalled >= limit.After:
		l.cancel(&LimitError{limit})
	default:
		l.armed = min(limit.After-stalled, longest.After-l.silent)
		l.reset(l.armed)
	}
}

// Resumed returns due, or a later time if this process was suspended at due and has not
// read the bytes that arrived.
func Resumed(due time.Time) time.Time {
	if time.Since(due) <= transferSlack {
		return due
	}
	return time.Now().Add(streamSilence)
}

// leaseEnded ends the leg if its KV cache must not be read any more. The engine would read blocks that
// prefill has given to other requests, without an error (TestKVTransfer_EndsWhileDecodeSilent).
// The first content proves that the blocks were read, and a core that runs, if only for a trial, has
// renewed the lease. If neither can be observed, Silent decides. l.lease and Commit call it.
func (l *Leg) leaseEnded() {
	last, ran, observable := l.progress()
	l.mu.Lock()
	defer l.mu.Unlock()
	now, until := time.Now(), l.kvUntil
	if l.committed || l.Err() != nil || until.IsZero() || now.Before(until) {
		return
	}
	switch {
	// This process was suspended before it began the leg, or while the lease ended: the engine
	// may have been suspended, too, and have made its progress since.
	case until.Before(l.Began), now.Sub(until) > transferSlack:
	case !observable && (l.wait.KVRenews || !l.wait.Streamed), last.After(l.Began) && !l.wait.Streamed:
		l.kvUntil = time.Time{}
		return
	case ran.After(l.Began) && l.wait.KVRenews:
		// Between two renewals, and after the last one, at least this much of the lease is left.
		if renewed := ran.Add(l.wait.KVLimit.After / 2); renewed.After(now) {
			l.kvUntil = renewed
			l.lease.Reset(renewed.Sub(now))
			return
		}
	}
	l.cancel(&LimitError{l.wait.KVLimit})
}
