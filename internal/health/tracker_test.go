package health_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

type source struct {
	p atomic.Pointer[instance.Snapshot]
}

func (s *source) Snapshot() *instance.Snapshot { return s.p.Load() }

func (s *source) set(list ...*instance.Instance) {
	if old := s.p.Swap(instance.NewSnapshot(1, list)); old != nil {
		old.Supersede()
	}
}

// engine answers probes as the test sets it.
type engine struct {
	mu    sync.Mutex
	err   error
	asked int
	hangs map[string]chan struct{} // by address: probes wait until it is closed
}

func (e *engine) Alive(ctx context.Context, in *instance.Instance) error {
	e.mu.Lock()
	e.asked++
	err, hangs := e.err, e.hangs[in.Address]
	e.mu.Unlock()
	if hangs == nil {
		return err
	}
	select {
	case <-hangs:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hang makes the instances at some addresses hang, until resume is called.
func (e *engine) hang(addresses ...string) (resume func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hangs == nil {
		e.hangs = map[string]chan struct{}{}
	}
	c := make(chan struct{})
	for _, a := range addresses {
		e.hangs[a] = c
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, a := range addresses {
			delete(e.hangs, a)
		}
		close(c)
	}
}

func (e *engine) answer(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

func (e *engine) probes() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked
}

var errDead = errors.New("dead")

func inst(id string) *instance.Instance {
	return &instance.Instance{
		Key: instance.Key{Role: instance.Decode, Address: "d:1"}, Verified: true,
		Record: instance.Record{State: instance.Ready, ID: id},
	}
}

// run runs f with a Tracker in virtual time.
func run(t *testing.T, change func(*health.Options), f func(*health.Tracker, *source, *engine, *instance.Instance)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log := logrus.New()
		log.SetOutput(io.Discard)
		src, eng, in := &source{}, &engine{}, inst("a")
		src.set(in)
		o := health.Options{Source: src, Prober: eng, Log: log}
		if change != nil {
			change(&o)
		}
		tr := health.New(o)
		f(tr, src, eng, in)
		tr.Close()
	})
}

func TestRefused_ReadmittedByProbe(t *testing.T) {
	t.Parallel()
	run(t, nil, func(tr *health.Tracker, _ *source, eng *engine, in *instance.Instance) {
		require.True(t, !tr.Trouble() && tr.Available(in.Key) && tr.Share(in.Key) == 1,
			"a new tracker has ejected an instance")
		eng.answer(errDead)
		tr.Eject(in, "refused")
		tr.Eject(in, "refused again")
		require.False(t, tr.Available(in.Key), "it is still in")
		require.True(t, tr.Unreachable(in.Key), "it is still in")
		time.Sleep(20 * time.Second)
		n := eng.probes()
		require.True(t, n >= 9 && n <= 30, "%d probes in 20 s", n)
		eng.answer(nil)
		time.Sleep(2 * time.Second)
		require.True(t, tr.Available(in.Key), "a good probe did not bring it back within one interval")
		require.False(t, tr.Unreachable(in.Key), "a good probe did not bring it back within one interval")
		s := tr.Share(in.Key)
		require.Less(t, s, 0.5, "share %v right after the return", s)
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 1, tr.Share(in.Key), "share after the slow start")
	})
}

// Troubled lists an instance from its first strike until its
// record is deleted; a returned list does not change.
func TestTroubledByName(t *testing.T) {
	t.Parallel()
	run(t, nil, func(tr *health.Tracker, src *source, eng *engine, in *instance.Instance) {
		other := *in
		other.Address = "d:2"
		src.set(in, &other)
		eng.answer(errDead)
		ejected := func(want ...instance.Key) []instance.Key {
			t.Helper()
			got := tr.Troubled()
			require.Equal(t, len(want), len(got))
			require.Equal(t, len(want) > 0, tr.Trouble())
			for _, k := range want {
				require.True(t, slices.Contains(got, k), "%v, want %v", got, want)
			}
			return got
		}
		ejected()
		tr.Strike(in, "m", "5xx", false)
		first := ejected(in.Key)
		tr.Eject(&other, "refused")
		tr.Eject(&other, "refused again")
		both := ejected(in.Key, other.Key)
		tr.Success(in, "m")
		ejected(other.Key)
		src.set(in) // the other one leaves
		synctest.Wait()
		ejected()
		assert.True(t, len(first) == 1 && first[0] == in.Key && len(both) == 2 && slices.Contains(both, other.Key),
			"lists that were given out have changed: %v, %v", first, both)
	})
}

// Strikes for one model do not eject an engine that serves another one, even during slow start.
func TestStrikesForOneModel(t *testing.T) {
	t.Parallel()
	run(t, nil, func(tr *health.Tracker, _ *source, _ *engine, in *instance.Instance) {
		failing := func(want bool) {
			t.Helper()
			got := tr.Failing(in.Key, "bad")
			require.True(t, got == want && !tr.Failing(in.Key, "m"), "ejected for one model: %t, want %t", got, want)
		}
		for range 3 {
			tr.Strike(in, "bad", "5xx", false)
		}
		for !tr.Available(in.Key) { // it has not served another model yet
			time.Sleep(10 * time.Millisecond)
		}
		for range 3 {
			failing(false)
			tr.Success(in, "m")
			tr.Strike(in, "bad", "5xx", false)
			require.True(t, tr.Available(in.Key), "ejected, although it serves another model")
			failing(true)
			time.Sleep(30 * time.Second)
		}
		failing(false)
		tr.Success(in, "bad")
		time.Sleep(2 * time.Minute)
		tr.Success(in, "m")
		assert.False(t, tr.Trouble(), "it has a record although it serves all models")
	})
}

func TestStrikesInARow(t *testing.T) {
	t.Parallel()
	run(t, nil, func(tr *health.Tracker, _ *source, _ *engine, in *instance.Instance) {
		tr.Strike(in, "m", "5xx", false)
		tr.Strike(in, "m", "5xx", false)
		tr.Success(in, "m") // not in a row
		require.False(t, tr.Trouble(), "a success did not clear the strikes")
		for range 3 {
			require.True(t, tr.Available(in.Key), "ejected too early")
			tr.Strike(in, "m", "5xx", false)
		}
		require.False(t, tr.Available(in.Key))
		require.False(t, tr.Unreachable(in.Key))
		// An ejection soon after another one is longer, and during slow start a single strike is enough.
		last := time.Duration(0)
		for range 4 {
			start := time.Now()
			for !tr.Available(in.Key) {
				time.Sleep(10 * time.Millisecond)
			}
			if out := time.Since(start); out <= last/2 {
				t.Fatalf("out for %s after %s", out, last)
			} else {
				last = out
			}
			tr.Strike(in, "m", "5xx", false)
			require.False(t, tr.Available(in.Key), "one strike on probation ejects")
		}
	})
}

func TestEjection_EndsWithIncarnation(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*source){
		"restarted": func(s *source) { s.set(inst("b")) },
		"left":      func(s *source) { s.set() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, nil, func(tr *health.Tracker, src *source, eng *engine, in *instance.Instance) {
				eng.answer(errDead)
				tr.Eject(in, "refused")
				change(src)
				synctest.Wait()
				require.False(t, tr.Trouble(), "something is still held against it")
			})
		})
	}
}

// A report about a former process says nothing about the present one at
// its address: failed requests may end long after the restart.
func TestTracker_ReportsAboutFormerProcess(t *testing.T) {
	t.Parallel()
	for name, ejected := range map[string]bool{"available": false, "ejected": true} {
		var ejections atomic.Int64
		run(t, func(o *health.Options) {
			o.OnEject = func(instance.Key, bool, string) { ejections.Add(1) }
		}, func(tr *health.Tracker, src *source, eng *engine, old *instance.Instance) {
			tr.Strike(old, "m", "lost", false)
			is := inst("b")
			src.set(is)
			eng.answer(errDead)
			if ejected {
				tr.Eject(is, "refused")
				synctest.Wait()
			}
			before := ejections.Load()
			for _, report := range []func(){
				func() { tr.Strike(old, "m", "lost", false) }, func() { tr.Strike(old, "m", "lost", false) }, func() { tr.Strike(old, "m", "lost", false) },
				func() { tr.Suspect(old) }, func() { tr.Eject(old, "refused") },
			} {
				report()
				assert.NotEqual(t, ejected, tr.Available(is.Key), "%s: available", name)
			}
			synctest.Wait()
			assert.EqualValues(t, 0, ejections.Load()-before, "%s: ejections were reported", name)
		})
	}
}

// Instances that have left are removed from the list, even if they were not ejected.
func TestTracker_RemovedNotListed(t *testing.T) {
	t.Parallel()
	run(t, nil, func(tr *health.Tracker, src *source, _ *engine, in *instance.Instance) {
		for i := range 100 {
			one := *in
			one.Role, one.Address = instance.Roles()[i%2], fmt.Sprintf("d:%d", 1+i/2)
			src.set(&one)
			tr.Strike(&one, "m", "5xx", false)
		}
		assert.Equal(t, 1, len(tr.Troubled()), "instances are listed, and one is there")
	})
}

// An instance that refuses connections is ejected, even if it is the only one, and is not called silent.
func TestSuspect(t *testing.T) {
	t.Parallel()
	var ejected atomic.Int64
	run(t, func(o *health.Options) {
		o.OnEject = func(_ instance.Key, hard bool, _ string) {
			if hard {
				ejected.Add(1)
			}
		}
	}, func(tr *health.Tracker, _ *source, eng *engine, in *instance.Instance) {
		tr.Suspect(in)
		synctest.Wait()
		require.False(t, tr.Trouble(), "an instance that answers is not probed")
		require.Equal(t, 1, eng.probes(), "an instance that answers is not probed")
		eng.answer(errDead)
		tr.Suspect(in)
		tr.Suspect(in)
		synctest.Wait()
		require.True(t, !tr.Available(in.Key) && !tr.Silent(in.Key) && ejected.Load() == 1 && eng.probes() == 4,
			"dead: available %v, %d ejections, %d probes", tr.Available(in.Key), ejected.Load(), eng.probes())
	})
}

// A probe that could not be sent says nothing about the instance, and is repeated at the next Suspect.
func TestSuspect_ProbeNotSent(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	run(t, func(o *health.Options) { o.Log = log }, func(tr *health.Tracker, _ *source, eng *engine, in *instance.Instance) {
		eng.answer(fmt.Errorf("%w: no descriptors", health.ErrNotSent))
		for n := range 20 {
			tr.Suspect(in)
			synctest.Wait()
			require.False(t, tr.Trouble())
			require.Equal(t, n+1, eng.probes())
			time.Sleep(time.Second)
		}
		n := strings.Count(out.String(), "could not be probed")
		assert.Equal(t, 2, n, "logged %d times in 20 s:\n%s", n, &out)
		// Its existing strikes are kept.
		tr.Strike(in, "m", "x", false)
		tr.Suspect(in)
		synctest.Wait()
		require.True(t, tr.Trouble(), "its strike was forgotten, or it was ejected")
		require.True(t, tr.Available(in.Key), "its strike was forgotten, or it was ejected")
		eng.answer(errDead)
		tr.Suspect(in)
		synctest.Wait()
		require.False(t, tr.Available(in.Key), "it is in, and says nothing")
		eng.answer(health.ErrNotSent)
		time.Sleep(time.Minute)
		require.False(t, tr.Available(in.Key), "readmitted without a probe")
		eng.answer(nil)
		time.Sleep(3 * time.Second)
		require.True(t, tr.Available(in.Key), "it answers and is not back")
	})
}

func TestTracker_Closed(t *testing.T) {
	t.Parallel()
	run(t, nil, func(tr *health.Tracker, _ *source, eng *engine, in *instance.Instance) {
		tr.Close()
		tr.Eject(in, "x")
		tr.Strike(in, "m", "x", false)
		tr.Suspect(in)
		require.False(t, tr.Trouble(), "it went on after Close")
		require.Equal(t, 0, eng.probes(), "it went on after Close")
	})
}
