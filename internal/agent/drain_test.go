package agent

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
)

func TestDrain(t *testing.T) {
	busy := vllm.Stats{Complete: true, Running: 1, Waiting: 1}
	prefill := instance.Key{Role: instance.Prefill, Address: "10.0.0.7:8100"}
	for _, tc := range []struct {
		name   string
		first  vllm.Stats
		o      Options
		before func(*fakeEngine) // at t=1 s, just before the drain begins
		then   func(r *rig)      // from t=1 s, when the drain begins
		want   string
	}{
		{name: "idle at once", first: idleStats(), want: "1.5s revoke"},
		{name: "idle during the delay", first: idleStats(), o: Options{ShutdownDelay: func() time.Duration { return 5 * time.Second }}, want: "6s revoke"},
		{
			name: "the limit begins after the delay", first: busy,
			o: Options{ShutdownDelay: func() time.Duration { return 5 * time.Second }, DrainTimeout: 20 * time.Second}, want: "26s revoke",
		},
		{
			name: "wait skipped during the delay", first: idleStats(), o: Options{ShutdownDelay: func() time.Duration { return time.Minute }},
			then: func(r *rig) { r.after(2*time.Second, nil); r.Hurry() },
			want: "3s revoke",
		},
		{
			name: "waits for running requests", first: busy,
			then: func(r *rig) { r.after(9*time.Second, func(e *fakeEngine) { e.stats = idleStats() }) },
			want: "11s revoke",
		},
		{
			name: "a late request is seen", first: idleStats(),
			then: func(r *rig) {
				r.after(100*time.Millisecond, func(e *fakeEngine) { e.stats = busy })
				r.after(2*time.Second, func(e *fakeEngine) { e.stats = idleStats() })
			},
			want: "4s revoke",
		},
		{name: "limit", first: busy, o: Options{DrainTimeout: 20 * time.Second}, want: "21s revoke"},
		{
			name: "wait skipped", first: busy,
			then: func(r *rig) { r.after(2*time.Second, nil); r.Hurry(); r.Hurry() },
			want: "3s revoke",
		},
		{
			name: "wait skipped while a reading hangs", first: busy,
			then: func(r *rig) {
				r.after(200*time.Millisecond, func(e *fakeEngine) { e.hang = true })
				r.after(2*time.Second, nil)
				r.Hurry()
			},
			want: "3.2s revoke",
		},
		{
			name: "engine dies", first: busy,
			then: func(r *rig) { r.after(200*time.Millisecond, func(e *fakeEngine) { e.loadErr = errRefused }) },
			want: "2.5s revoke",
		},
		{name: "unknown load is not idle", first: vllm.Stats{}, want: "2m1s revoke"},
		{
			name: "no metrics is not idle", first: idleStats(), o: Options{DrainTimeout: 10 * time.Second},
			then: func(r *rig) { r.engine.change(func(e *fakeEngine) { e.loadErr = errors.New("HTTP 404") }) },
			want: "11s revoke",
		},
		{name: "prefill that never worked", first: idleStats(), o: Options{Key: prefill}, want: "1.5s revoke"},
		{
			name: "prefill waits out the KV lease", first: busy, o: Options{Key: prefill, KVLease: 10 * time.Second},
			then: func(r *rig) { r.after(2*time.Second, func(e *fakeEngine) { e.stats = idleStats() }) },
			want: "13.5s revoke", // last seen busy at 3 s
		},
		{
			name: "a prefill between two readings counts", o: Options{Key: prefill},
			first:  idleStats(),
			before: func(e *fakeEngine) { e.stats.Finished = 1 },
			want:   "31.5s revoke", // seen finished at 1 s
		},
		{
			name: "prefills of before the agent count", o: Options{Key: prefill, KVLease: 5 * time.Second},
			first: vllm.Stats{Complete: true, Finished: 7}, want: "5.5s revoke",
		},
		{name: "no KV lease", o: Options{Key: prefill, KVLease: -1}, first: vllm.Stats{Complete: true, Finished: 7}, want: "1.5s revoke"},
		{name: "decode has no KV lease", first: vllm.Stats{Complete: true, Finished: 7}, want: "1.5s revoke"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, &fakeEngine{stats: tc.first}, tc.o)
				r.after(time.Second, tc.before)
				r.stop()
				if tc.then != nil {
					tc.then(r)
				}
				assert.NoError(t, <-r.done)
				wantLog(t, r.reg.lines(), "0s ready org/m", "1s draining org/m", "1s settle", tc.want)
			})
		})
	}
}

// Even an idle engine remains registered until etcd has stored the
// drain: proxies take an unexplained key loss for an orphan.
func TestDrainWhileEtcdIsSlow(t *testing.T) {
	for _, tc := range []struct {
		name     string
		storedAt time.Duration
		o        Options
		then     func(r *rig)
		want     []string
	}{
		{name: "an election", storedAt: 3 * time.Second, want: []string{"3s settle", "3.5s revoke"}},
		{name: "away for long", storedAt: time.Hour, want: []string{"6s not settled", "7.5s not settled", "7.5s revoke"}},
		{name: "stored at the last moment", storedAt: 7 * time.Second, want: []string{"6s not settled", "7s settle", "7s revoke"}},
		{
			name: "wait skipped", storedAt: 2500 * time.Millisecond,
			then: func(r *rig) { r.after(time.Second, nil); r.Hurry() },
			want: []string{"2s not settled", "2.5s settle", "2.5s revoke"},
		},
		{name: "a short limit", storedAt: 1500 * time.Millisecond, o: Options{DrainTimeout: time.Millisecond}, want: []string{"1.001s not settled", "1.5s settle", "1.5s revoke"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, &fakeEngine{stats: idleStats()}, tc.o)
				r.reg.storedAt = tc.storedAt
				r.after(time.Second, nil)
				r.stop()
				if tc.then != nil {
					tc.then(r)
				}
				assert.NoError(t, <-r.done)
				wantLog(t, r.reg.lines(), append([]string{"0s ready org/m", "1s draining org/m"}, tc.want...)...)
			})
		})
	}
}

func TestRevokeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &fakeEngine{stats: idleStats()}, Options{})
		away := errors.New("etcd is away")
		r.reg.err = away
		r.after(time.Second, nil)
		assert.ErrorIs(t, r.end(), away)
	})
}
