package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// fakeEngine answers according to its fields.
type fakeEngine struct {
	mu      sync.Mutex
	err     error
	models  []string
	stats   vllm.Stats
	loadErr error
	hang    bool
	probes  int
}

func (e *fakeEngine) Probe(ctx context.Context) (instance.Facts, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.probes++
	if e.err != nil {
		return instance.Facts{}, e.err
	}
	return instance.Facts{Models: slices.Clone(e.models), MaxModelLen: 4096, Version: "0.12.0"}, nil
}

func (e *fakeEngine) Load(ctx context.Context) (vllm.Stats, error) {
	e.mu.Lock()
	hang := e.hang
	stats, err := e.stats, e.loadErr
	e.mu.Unlock()
	if hang {
		<-ctx.Done()
		return vllm.Stats{}, ctx.Err()
	}
	return stats, err
}

func (e *fakeEngine) change(f func(*fakeEngine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(e)
}

// fakeRegistrar records its calls and their times.
type fakeRegistrar struct {
	mu       sync.Mutex
	start    time.Time
	log      []string
	records  []instance.Record
	err      error
	storedAt time.Duration // time since start when etcd answers; set before the first call
}

func (r *fakeRegistrar) Set(rec instance.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, rec)
	r.log = append(r.log, fmt.Sprintf("%s %s %s", time.Since(r.start), rec.State, strings.Join(rec.Models, ",")))
}

func (r *fakeRegistrar) Settle(ctx context.Context) bool {
	word := "settle"
	if wait := r.storedAt - time.Since(r.start); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			word = "not settled"
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf("%s %s", time.Since(r.start), word))
	return word == "settle"
}

func (r *fakeRegistrar) Revoke(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf("%s revoke", time.Since(r.start)))
	return r.err
}

func (r *fakeRegistrar) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.log)
}

func (r *fakeRegistrar) ids() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for _, rec := range r.records {
		if !slices.Contains(ids, rec.ID) {
			ids = append(ids, rec.ID)
		}
	}
	return ids
}

type rig struct {
	*Agent
	engine *fakeEngine
	reg    *fakeRegistrar
	stop   context.CancelFunc
	done   chan error
}

var errRefused = fmt.Errorf("dial: %w", vllm.ErrRefused)

func idleStats() vllm.Stats { return vllm.Stats{Complete: true} }

// start runs an agent inside the caller's bubble.
func start(t *testing.T, e *fakeEngine, o Options) *rig {
	t.Helper()
	if o.Log == nil {
		o.Log = silentLog()
	}
	if o.Key.Role == "" {
		o.Key = instance.Key{Role: instance.Decode, Address: "10.0.0.7:8100"}
	}
	if e.models == nil {
		e.models = []string{"org/m"}
	}
	reg := &fakeRegistrar{start: time.Now()}
	ctx, cancel := context.WithCancel(t.Context())
	r := &rig{Agent: New(e, reg, o), engine: e, reg: reg, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- r.Run(ctx) }()
	return r
}

func silentLog() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// after waits for d and until all goroutines are idle, then changes the engine.
func (r *rig) after(d time.Duration, f func(*fakeEngine)) {
	time.Sleep(d) // in a bubble: fake time
	synctest.Wait()
	if f != nil {
		r.engine.change(f)
	}
}

func (r *rig) end() error {
	r.stop()
	return <-r.done
}

// leave ends the agent without the wait for an idle engine.
func (r *rig) leave() {
	r.Hurry()
	_ = r.end()
}

func wantLog(t *testing.T, got []string, want ...string) {
	t.Helper()
	assert.Empty(t, cmp.Diff(want, got))
}

func TestProbes_BackOffUntilAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &fakeEngine{err: errRefused, stats: idleStats()}, Options{Model: "m"})
		// Probes at 0, 0.5, 1.5, 3.5, 7.5, 12.5, 17.5, ...: doubling, capped at 5 s.
		r.after(18*time.Second, nil)
		assert.Equal(t, 7, r.engine.probes, "probes in 18 s")
		s := r.Status()
		assert.True(t, s.Phase == Probing && strings.Contains(s.Reason, "refused"), "status %+v", s)
		r.after(0, func(e *fakeEngine) { e.err = nil })
		r.after(6*time.Second, nil)
		s = r.Status()
		assert.True(t, s.Phase == Registering && s.Reason == "", "status %+v", s)
		r.Registered(true)
		assert.Equal(t, Serving, r.Status().Phase)
		r.Registered(false)
		assert.Equal(t, Registering, r.Status().Phase)
		assert.NoError(t, r.end())
		wantLog(t, r.reg.lines(), "22.5s ready org/m", "24s draining org/m", "24s settle", "24.5s revoke")
		assert.Equal(t, Gone, r.Status().Phase)
	})
}

func TestOtherModel_NotRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &fakeEngine{models: []string{"other/\x1b[1mx"}}, Options{Model: "org/m"})
		r.after(time.Hour, nil)
		s := r.Status()
		assert.Equal(t, Probing, s.Phase)
		assert.Contains(t, s.Reason, `serves other/\u001b[1mx, not org/m`)
		assert.NoError(t, r.end())
		wantLog(t, r.reg.lines())
	})
}

func TestStrictModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &fakeEngine{models: []string{"org/m"}}, Options{Model: "m", StrictModel: true})
		r.after(time.Minute, func(e *fakeEngine) { e.models = []string{"m"} })
		r.after(5*time.Second, nil)
		if n := len(r.reg.lines()); n != 1 {
			t.Errorf("registrar saw %q", r.reg.lines())
		}
		r.leave()
	})
}

// A record has the start time of the engine's process, and labels that callers cannot change.
func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now().Add(-time.Hour).UTC()
		labels := map[string]string{"zone": "a"}
		r := start(t, &fakeEngine{stats: vllm.Stats{Complete: true, StartedAt: began}}, Options{Base: instance.Record{Labels: labels}})
		r.after(time.Second, nil)
		labels["zone"] = "changed later"
		rec := r.Status().Record
		assert.True(t, rec.StartedAt != nil && rec.StartedAt.Equal(began) && rec.Labels["zone"] == "a", "%+v", rec)
		r.leave()
	})
}

func TestProbes_DownAndReadyThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := errors.New("no answer")
		r := start(t, &fakeEngine{stats: idleStats()}, Options{})
		r.Registered(true)
		r.after(time.Second, func(e *fakeEngine) { e.err = hung })
		r.after(4*time.Second, func(e *fakeEngine) { e.err = nil })  // t=5: failed at 2 and 4
		r.after(2*time.Second, func(e *fakeEngine) { e.err = hung }) // t=7: good at 6
		r.after(6*time.Second, func(e *fakeEngine) {                 // t=13: failed at 8, 10, 12
			e.err, e.models = nil, []string{"org/m", "lora"}
		})
		s := r.Status()
		assert.True(t, s.Phase == Down && s.Reason == "no answer", "status %+v", s)
		r.after(2*time.Second, func(e *fakeEngine) { e.err = hung }) // t=15: good at 14
		r.after(2*time.Second, func(e *fakeEngine) { e.err = nil })  // t=17: failed at 16
		r.after(2*time.Second, nil)                                  // t=19: good at 18
		assert.Equal(t, Down, r.Status().Phase, "ready after one good probe")
		r.after(2*time.Second, nil) // t=21: good at 20
		s = r.Status()
		assert.True(t, s.Phase == Serving && s.Reason == "", "status %+v", s)
		_ = r.end()
		wantLog(t, r.reg.lines(), "0s ready org/m", "12s down org/m", "20s ready org/m,lora",
			"21s draining org/m,lora", "21s settle", "21.5s revoke")
		assert.Len(t, r.reg.ids(), 1, "ids; a hung engine is the same process")
	})
}

func TestRefusedProbe_NewIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &fakeEngine{stats: idleStats()}, Options{})
		// A single refused probe does not lead to "down", but the next good probe reaches another process.
		r.after(time.Second, func(e *fakeEngine) { e.err = errRefused })
		r.after(1200*time.Millisecond, func(e *fakeEngine) { e.err = nil }) // t=2.2: refused at 2
		r.after(time.Second, func(e *fakeEngine) { e.err = errRefused })    // t=3.2: good at 2.5
		r.after(5*time.Second, func(e *fakeEngine) { e.err = nil })         // t=8.2: refused at 4.5, 5, 5.5 and on
		r.after(5*time.Second, nil)
		r.leave()
		wantLog(t, r.reg.lines(), "0s ready org/m", "2.5s ready org/m", "5.5s down org/m", "11.5s ready org/m",
			"13.2s draining org/m", "13.2s settle", "13.2s revoke")
		assert.Len(t, r.reg.ids(), 3)
	})
}

func TestStartTime_ChangeIsNewIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := time.Now().Add(-time.Hour), time.Now().Add(3*time.Second)
		stats := idleStats()
		stats.StartedAt = first
		r := start(t, &fakeEngine{stats: stats}, Options{})
		r.after(time.Second, func(e *fakeEngine) { e.loadErr = errors.New("no metrics now") })
		r.after(3*time.Second, func(e *fakeEngine) { e.loadErr, e.stats.StartedAt = nil, second })
		r.after(4*time.Second, nil)
		id := r.Status().Record.ID
		r.leave()
		wantLog(t, r.reg.lines(), "0s ready org/m", "6s ready org/m", "8s draining org/m", "8s settle", "8s revoke")
		assert.Len(t, r.reg.ids(), 2)

		// Another agent for the same engine process derives the same incarnation. An
		// agent in another network namespace, or in the other role, does not.
		stats.StartedAt = second
		for name, tc := range map[string]struct {
			o     Options
			first error // of the first read of the metrics
			same  bool
		}{
			"restarted agent":            {Options{}, nil, true},
			"restarted agent, no answer": {Options{}, vllm.ErrClosed, true},
			"without metrics":            {Options{}, &vllm.StatusError{Code: 404}, false},
			"other host":                 {Options{Base: instance.Record{HostID: "other"}}, nil, false},
			"other role":                 {Options{Key: instance.Key{Role: instance.Prefill, Address: "10.0.0.7:8100"}}, nil, false},
		} {
			again := start(t, &fakeEngine{stats: stats, loadErr: tc.first}, tc.o)
			again.after(100*time.Millisecond, func(e *fakeEngine) { e.loadErr = nil })
			again.after(time.Second, nil)
			assert.Equal(t, tc.same, again.Status().Record.ID == id, "%s: same incarnation", name)
			again.leave()
		}

		// If the metrics can never be read, the registration is delayed once.
		never := start(t, &fakeEngine{loadErr: vllm.ErrClosed}, Options{})
		never.after(time.Minute, nil)
		never.leave()
		wantLog(t, never.reg.lines(), "500ms ready org/m", "1m0s draining org/m", "1m0s settle", "1m0s revoke")
	})
}

func TestStartTime_LateIsSameIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &fakeEngine{stats: idleStats()}, Options{})
		began := time.Now().Add(-time.Minute)
		r.after(time.Second, func(e *fakeEngine) { e.stats.StartedAt = began })
		r.after(4*time.Second, nil)
		got := r.Status().Record.StartedAt
		assert.True(t, got != nil && got.Equal(began), "started_at %v", got)
		r.leave()
		assert.Len(t, r.reg.ids(), 1)
	})
}

func TestWrongModel_DownAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &fakeEngine{stats: idleStats()}, Options{Model: "m"})
		r.after(time.Second, func(e *fakeEngine) { e.models = []string{"other"} })
		r.after(2*time.Second, func(e *fakeEngine) { e.models = []string{"m"} })
		r.after(4*time.Second, nil)
		r.leave()
		wantLog(t, r.reg.lines(), "0s ready org/m", "2s down org/m", "6s ready m", "7s draining m", "7s settle", "7s revoke")
	})
}

func TestHostID(t *testing.T) {
	t.Parallel()
	file := func(name, text string) fstest.MapFS {
		return fstest.MapFS{name: &fstest.MapFile{Data: []byte(text)}}
	}
	ns := func(s string) func(string) (string, error) {
		return func(string) (string, error) { return s, nil }
	}
	noNS := func(string) (string, error) { return "", errors.ErrUnsupported }
	id := func(root fstest.MapFS, readlink func(string) (string, error)) string {
		t.Helper()
		got, err := HostID(root, readlink)
		require.NoError(t, err)
		require.Len(t, got, 16)
		return got
	}
	base := id(file("etc/machine-id", "abc\n"), ns("net:[1]"))
	for name, got := range map[string]string{
		"other namespace": id(file("etc/machine-id", "abc\n"), ns("net:[2]")),
		"other machine":   id(file("etc/machine-id", "def\n"), ns("net:[1]")),
		"no namespace":    id(file("etc/machine-id", "abc\n"), noNS),
		"no machine id":   id(file("proc/sys/kernel/random/boot_id", "boot\n"), ns("net:[1]")),
		"nothing":         id(fstest.MapFS{}, ns("net:[1]")),
		"uninitialized":   id(file("etc/machine-id", "uninitialized\n"), ns("net:[1]")),
	} {
		assert.NotEqual(t, base, got, "%s: same id", name)
	}
	assert.Equal(t, base, id(file("var/lib/dbus/machine-id", "abc"), ns("net:[1]")),
		"the same machine id in its other place: other id")
	assert.Equal(t, id(file("etc/machine-id", " "), noNS), id(fstest.MapFS{}, noNS), "an empty machine id is none")
	_, err := HostID(os.DirFS("/"), os.Readlink)
	assert.NoError(t, err, "here")
}

func TestEngineProcessEnds(t *testing.T) {
	for _, tc := range []struct {
		name   string
		engine *fakeEngine
		drain  bool // it ends during its drain
		hang   bool // it has not answered for a second
		want   []string
	}{
		{"while it loads", &fakeEngine{err: errRefused}, false, false, nil},
		{"while it serves", &fakeEngine{stats: idleStats()}, false, false, []string{"0s ready org/m", "3s down org/m", "3s settle", "3s revoke"}},
		{"while it is asked", &fakeEngine{stats: idleStats()}, false, true, []string{"0s ready org/m", "3s down org/m", "3s settle", "3s revoke"}},
		{
			"while it drains", &fakeEngine{stats: vllm.Stats{Complete: true, Running: 1}}, true, false,
			[]string{"0s ready org/m", "1s draining org/m", "1s settle", "3s revoke"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				exited := make(chan struct{})
				r := start(t, tc.engine, Options{Exited: exited})
				r.after(time.Second, nil)
				if tc.drain {
					r.stop()
				}
				tc.engine.change(func(e *fakeEngine) { e.hang = tc.hang })
				r.after(2*time.Second, nil)
				close(exited)
				assert.NoError(t, <-r.done)
				r.stop()
				wantLog(t, r.reg.lines(), tc.want...)
				s := r.Status()
				assert.True(t, s.Phase == Gone && !s.Beat.IsZero(), "status %+v", s)
			})
		})
	}
}

// A large model loads for minutes: the agent does not give up,
// and registers the engine with the first successful probe.
func TestEngine_LoadsForMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{err: errRefused, stats: idleStats()}
		r := start(t, e, Options{Exited: make(chan struct{})})
		r.after(5*time.Minute, func(e *fakeEngine) { e.err = nil })
		assert.Equal(t, Probing, r.Status().Phase)
		r.after(MaxBackoff, nil)
		assert.Equal(t, Registering, r.Status().Phase)
		r.leave()
	})
}
