package leg

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

const (
	busyTimeout = 30 * time.Minute
	always      = busyTimeout + time.Hour // longer than any leg here lasts
)

// observed begins a leg whose engine makes progress without a pause until the given time after the beginning
// of the leg.
func observed(t *testing.T, until time.Duration, observable bool, w Wait) *Leg {
	t.Helper()
	return tried(t, until, until, observable, w)
}

// tried is observed with an engine that also answers trial requests, until runs.
func tried(t *testing.T, until, runs time.Duration, observable bool, w Wait) *Leg {
	t.Helper()
	o, begun := testOrigin(t.Context()), time.Now()
	o.Settings.Busy = busyTimeout
	o.Settings.Progress = func(instance.Key) (last, ran time.Time, _ bool) {
		if !observable {
			return last, ran, false
		}
		now := time.Since(begun)
		return begun.Add(min(now, until)), begun.Add(min(now, runs)), true
	}
	l := o.newLeg(&instance.Instance{}, nil, w)
	t.Cleanup(l.End)
	return l
}

// lifetime returns how long a leg lasts, in the time of a synctest bubble.
func lifetime(l *Leg) time.Duration {
	<-l.Done()
	return time.Since(l.Began)
}

// While an engine makes progress, a silent leg lasts up to --busy-timeout. After the progress, or if it
// cannot be observed, the leg's own limit applies. Trial requests are no progress. The error names the limit.
func TestLimit_Progress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		limit  Limit
		until  time.Duration // end of the engine's progress
		hidden bool          // it cannot be observed
		lasts  time.Duration
		error  string
	}{
		{"idle, busy engine", IdleLimit(2 * time.Minute), always, false, busyTimeout, "no further byte of the answer for 1800 s (--busy-timeout)"},
		{"idle, engine stalls", IdleLimit(2 * time.Minute), 100 * time.Second, false, 220 * time.Second, "no further byte of the answer for 120 s (--idle-timeout)"},
		{"idle, idle engine", IdleLimit(2 * time.Minute), 0, false, 2 * time.Minute, "no further byte of the answer for 120 s (--idle-timeout)"},
		{"idle, unobserved", IdleLimit(2 * time.Minute), always, true, 2 * time.Minute, "no further byte of the answer for 120 s (--idle-timeout)"},
		{"first byte, busy engine", FirstByteLimit(time.Minute), always, false, busyTimeout, "no byte of an answer for 1800 s (--busy-timeout)"},
		{"first byte, unobserved", FirstByteLimit(time.Minute), always, true, time.Minute, "no byte of an answer for 60 s (--decode-first-byte-timeout)"},
		{"prefill, busy engine", PrefillLimit(5 * time.Minute), always, false, busyTimeout, "no prefill answer for 1800 s (--busy-timeout)"},
		{"prefill, unobserved", PrefillLimit(5 * time.Minute), always, true, 5 * time.Minute, "no prefill answer for 300 s (--prefill-timeout)"},
		{"not streamed, busy engine", NonStreamLimit(time.Hour), always, false, time.Hour, "no byte of an answer for 3600 s (--non-stream-timeout)"},
		{"notifications", NotifyLimit(30 * time.Second), always, false, 30 * time.Second, "no notification from every rank of prefill for 30 s (--lmcache-notify-timeout)"},
		{"end of a connection", GraceLimit(1500 * time.Millisecond), always, false, 1500 * time.Millisecond, "no further byte of the answer for 1.5 s (--idle-timeout)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := tried(t, c.until, always, !c.hidden, Wait{Limit: c.limit})
				if lasted := lifetime(l); lasted != c.lasts || endedBy(l) != c.error {
					t.Errorf("ended after %s by %q, want %s, %q", lasted, endedBy(l), c.lasts, c.error)
				}
			})
		})
	}
}

// Each byte begins a new silence.
func TestLimit_ResetByBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := observed(t, 100*time.Hour, true, Wait{Limit: FirstByteLimit(time.Minute)})
		time.Sleep(busyTimeout - time.Second)
		l.SetLimit(IdleLimit(2 * time.Minute))
		for range 3 {
			time.Sleep(busyTimeout - time.Second)
			l.Rearm(2 * time.Minute)
		}
		assert.Equal(t, 4*(busyTimeout-time.Second)+busyTimeout, lifetime(l), "ended after")
	})
}

const lease = 20 * time.Second

// leased returns the waits of a decode leg whose KV lease begins now.
func leased(waits time.Duration, streamed, renews bool) Wait {
	return Wait{
		Limit: FirstByteLimit(waits), Streamed: streamed, KVUntil: time.Now().Add(lease), KVRenews: renews,
		KVLimit: Limit{After: lease, Class: TransferExpired, Setting: "--kv-lease-budget"},
	}
}

// Until the answer is committed, the KV lease takes precedence over every other limit. A leg ends if it
// cannot have read the KV cache, or if its engine has not renewed the lease.
func TestLimit_Lease(t *testing.T) {
	t.Parallel()
	const waits = 150 * time.Second
	for _, c := range []struct {
		name      string
		renews    bool
		whole     bool          // the answer is not streamed
		until     time.Duration // end of the engine's progress
		hidden    bool
		tried     bool // the engine answers trial requests
		committed bool
		lasts     time.Duration // 0: longer than it waits
	}{
		{name: "queue of a busy engine", renews: true, until: always},
		{name: "engine stalls", renews: true, until: 60 * time.Second, lasts: 70 * time.Second},
		{name: "engine stalls at once", renews: true, until: 0, lasts: lease},
		{name: "idle engine answers trials", renews: true, until: 0, tried: true},
		{name: "idle engine answers trials, without renewal", until: 0, tried: true, lasts: lease},
		{name: "idle engine answers trials, without renewal, not streamed", whole: true, until: 0, tried: true, lasts: lease},
		{name: "engine stalls, not streamed", renews: true, whole: true, until: 0, lasts: lease},
		{name: "progress, not streamed", renews: true, whole: true, until: always},
		{name: "progress without renewal", until: always, lasts: lease},
		{name: "progress without renewal, not streamed", whole: true, until: always},
		{name: "progress cannot be observed", renews: true, hidden: true},
		{name: "neither renewal nor observation", hidden: true, lasts: lease},
		{name: "committed", until: 0, committed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				runs := c.until
				if c.tried {
					runs = always
				}
				l := tried(t, c.until, runs, !c.hidden, leased(waits, !c.whole, c.renews))
				if c.committed {
					_ = l.Commit(false)
				}
				time.Sleep(cmp.Or(c.lasts, waits) - time.Second)
				if l.Err() != nil {
					t.Fatalf("ended by %q", endedBy(l))
				}
				if c.lasts == 0 {
					return
				}
				time.Sleep(time.Second)
				synctest.Wait()
				assert.Equal(t, "no content, and no proof that the KV cache was read, for 20 s (--kv-lease-budget)", endedBy(l),
					"ended by")
				if err := l.Commit(true); err == nil {
					t.Error("a complete answer is used although decode may have read other blocks")
				}
			})
		})
	}
}

// After a stall of the machine, the first content may be read before the timer of the lease runs.
func TestLimit_LeaseAtTheCommit(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := observed(t, 0, true, leased(time.Hour, true, false))
			l.lease.Stop() // as if it were late
			if late {
				time.Sleep(21 * time.Second)
			}
			if err := l.Commit(false); (err != nil) != late {
				t.Errorf("late %v: %v", late, err)
			}
		})
	}
}

// A proxy that was suspended while the lease ended does not know what the engine did meanwhile. Progress that
// it sees later does not prove that the blocks were read in time. If it saw the progress in time, it uses the
// answer, however late it arrives.
func TestLimit_LeaseEndsDuringASuspension(t *testing.T) {
	t.Parallel()
	for _, streamed := range []bool{false, true} {
		for _, suspended := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				l := observed(t, always, true, leased(time.Hour, streamed, true))
				if suspended {
					l.lease.Stop() // as if it were late
				}
				time.Sleep(time.Minute)
				if err := l.Commit(true); (err != nil) != suspended {
					t.Errorf("streamed %v, suspended %v: %v", streamed, suspended, err)
				}
			})
		}
	}
}

// The time of a suspension does not count as silence of the engine: bytes that arrived meanwhile are read
// first.
func TestLimit_Suspension(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	for _, tt := range []struct {
		watched   bool
		suspended time.Duration
	}{{false, time.Minute}, {true, time.Minute}, {true, streamSilence + time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			l := observed(t, 0, true, Wait{Limit: FirstByteLimit(20 * time.Second), Streamed: true})
			if _ = l.Commit(false); tt.watched {
				l.doubtStream(lost)
			}
			l.timer.Stop() // as if it were late
			time.Sleep(tt.suspended)
			l.expire()
			time.Sleep(streamSilence - time.Second)
			if l.Err() != nil {
				t.Fatalf("%+v: ended by %v", tt, context.Cause(l))
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if err := context.Cause(l); err == nil || tt.watched != errors.Is(err, lost) {
				t.Errorf("%+v: %v", tt, err)
			}
		})
	}
}

// A stream whose instance was lost for a moment gets its own limit back.
func TestLimit_InstanceIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := observed(t, 0, true, Wait{Limit: FirstByteLimit(20 * time.Second), Streamed: true})
		l.origin.Settings.Removed = func(*sched.Assignment) error { return nil }
		l.origin.Settings.Available = func(instance.Key) bool { return true }
		_ = l.Commit(false)
		l.doubtStream(errors.New("lost"))
		time.Sleep(19 * time.Second)
		if l.Err() != nil {
			t.Fatalf("ended by %v", context.Cause(l))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if limit, ok := errors.AsType[*LimitError](context.Cause(l)); !ok || limit.Limit.Class != FirstByteTimeout {
			t.Errorf("%v", context.Cause(l))
		}
	})
}

// A limit that is set again just after its timer has fired does not end the leg.
func TestLimit_FiredAndSetAgain(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(*Leg){
		"rearmed": func(l *Leg) { l.Rearm(time.Minute) },
		"set":     func(l *Leg) { l.SetLimit(GraceLimit(time.Minute)) },
		"cleared": (*Leg).ClearLimit,
	} {
		l := legOf(t.Context(), t, Wait{Limit: GraceLimit(time.Hour)})
		again(l)
		l.expire() // the call of the timer that has already fired
		if l.Err() != nil {
			t.Errorf("%s: ended by %v", name, context.Cause(l))
		}
	}
}

// An overtaken leg ends, unless its first content cannot be seen, it waits for its partner, or the request
// already lost a leg for this reason.
func TestLeg_Overtaken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wait  Wait
		stuck bool
	}{
		"stream":       {Wait{Streamed: true}, true},
		"whole answer": {Wait{}, false},
		"partner":      {Wait{Streamed: true, Partner: true}, false},
		"second time":  {Wait{Streamed: true, Patient: true}, false},
	} {
		c.wait.Limit = FirstByteLimit(time.Hour)
		l := legOf(t.Context(), t, c.wait)
		l.Overtaken(20)
		assert.Equal(t, c.stuck, l.Err() != nil, "%s: ended %v", name, l.Err())
	}
}
