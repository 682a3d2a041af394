package health_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
)

func instanceAt(role instance.Role, address string) *instance.Instance {
	return &instance.Instance{
		Key: instance.Key{Role: role, Address: address}, Verified: true,
		Record: instance.Record{State: instance.Ready, ID: address},
	}
}

// The only instance of its role is never ejected while it accepts connections, however
// long it is silent. The same holds for several instances if all are silent.
func TestSilence_AllSilentNotEjected(t *testing.T) {
	t.Parallel()
	for name, all := range map[string][]*instance.Instance{
		"the only one":      {instanceAt(instance.Decode, "d:1"), instanceAt(instance.Prefill, "p:1")},
		"two of two":        {instanceAt(instance.Decode, "d:1"), instanceAt(instance.Decode, "d:2"), instanceAt(instance.Prefill, "p:1")},
		"the only prefill":  {instanceAt(instance.Prefill, "d:1"), instanceAt(instance.Decode, "p:1")},
		"the only instance": {instanceAt(instance.Decode, "d:1")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, nil, func(tr *health.Tracker, src *source, eng *engine, _ *instance.Instance) {
				src.set(slices.Clone(all)...) // a snapshot sorts its argument
				resume := eng.hang("d:1", "d:2")
				begun := time.Now()
				for time.Since(begun) < time.Minute {
					for _, in := range all {
						if in.Address != "p:1" {
							tr.Suspect(in)
						}
					}
					time.Sleep(time.Second)
					for _, in := range all {
						if !tr.Available(in.Key) {
							t.Fatalf("%s is ejected after %s", in.Key, time.Since(begun))
						}
					}
				}
				d := tr.SilentFor(all[0].Key)
				assert.True(t, d >= 59*time.Second && d <= 61*time.Second, "silent for %s, want a minute", d)
				resume()
				synctest.Wait()
				assert.False(t, tr.Trouble(), "it answers, and something is held against it")
				assert.EqualValues(t, 0, tr.SilentFor(all[0].Key), "it answers, and something is held against it")
			})
		})
	}
}

// silentTime returns how long an instance is silent before it is ejected.
func silentTime(t *testing.T, tr *health.Tracker, in *instance.Instance) time.Duration {
	t.Helper()
	begun := time.Now()
	tr.Suspect(in)
	for tr.Available(in.Key) {
		require.LessOrEqual(t, time.Since(begun), time.Minute, "it is not ejected")
		time.Sleep(10 * time.Millisecond)
	}
	require.True(t, tr.Unreachable(in.Key), "it is ejected, and not as silent")
	require.True(t, tr.Silent(in.Key), "it is ejected, and not as silent")
	return time.Since(begun)
}

// A silent instance is soon ejected while a peer answers, and returns with its
// first answer. Since it was only slow, the limit is longer the next time.
func TestSilence_PeerAnswers(t *testing.T) {
	t.Parallel()
	var dead atomic.Int64
	run(t, func(o *health.Options) {
		o.OnEject = func(_ instance.Key, d bool, _ string) {
			if d {
				dead.Add(1)
			}
		}
	}, func(tr *health.Tracker, src *source, eng *engine, _ *instance.Instance) {
		in, peer := instanceAt(instance.Decode, "d:1"), instanceAt(instance.Decode, "d:2")
		src.set(in, peer)
		resume := eng.hang("d:1")
		first := silentTime(t, tr, in)
		assert.LessOrEqual(t, first, 2*time.Second, "ejected after %s", first)
		time.Sleep(1500 * time.Millisecond)
		resume()
		time.Sleep(3 * time.Second)
		require.True(t, tr.Available(in.Key) && !tr.Silent(in.Key) && tr.SilentFor(in.Key) == 0,
			"it answers, and is not back")
		resume = eng.hang("d:1")
		defer resume()
		second := silentTime(t, tr, in)
		assert.GreaterOrEqual(t, second, 2*first, "given %s, then %s: that it was slow is forgotten", first, second)
		assert.EqualValues(t, 0, dead.Load(), "a silent instance may still answer, and was called dead")
	})
}

// Time in which an instance is ejected for another reason, after an answer, does not count as silence.
func TestSilence_EndsWhileEjected(t *testing.T) {
	t.Parallel()
	for name, eject := range map[string]func(*health.Tracker, *instance.Instance){
		"strikes": func(tr *health.Tracker, in *instance.Instance) {
			for range 3 {
				tr.Strike(in, "m", "5xx", false)
			}
		},
		"refused": func(tr *health.Tracker, in *instance.Instance) { tr.Eject(in, "refused") },
	} {
		run(t, nil, func(tr *health.Tracker, src *source, eng *engine, _ *instance.Instance) {
			in, peer := instanceAt(instance.Decode, "d:1"), instanceAt(instance.Decode, "d:2")
			src.set(in, peer)
			resume := eng.hang("d:1")
			tr.Suspect(in)
			time.Sleep(300 * time.Millisecond)
			eject(tr, in)
			resume()
			synctest.Wait()
			if d := tr.SilentFor(in.Key); tr.Available(in.Key) || d != 0 {
				t.Errorf("%s: available %t, silent for %s", name, tr.Available(in.Key), d)
			}
			eng.answer(errDead)
			time.Sleep(10 * time.Second)
			eng.answer(nil)
			time.Sleep(3 * time.Second)
			require.True(t, tr.Available(in.Key), "%s: it answers, and is not back", name)
			defer eng.hang("d:1")()
			d := silentTime(t, tr, in)
			assert.LessOrEqual(t, d, 2*time.Second, "%s: ejected after %s of silence", name, d)
		})
	}
}

// A peer that answers slowly extends the limit of a silent instance.
func TestSilence_PeerAnswersSlowly(t *testing.T) {
	t.Parallel()
	run(t, nil, func(tr *health.Tracker, src *source, eng *engine, _ *instance.Instance) {
		in, peer := instanceAt(instance.Decode, "d:1"), instanceAt(instance.Decode, "d:2")
		src.set(in, peer)
		resume := eng.hang("d:1")
		defer resume()
		answer := eng.hang("d:2")
		time.AfterFunc(1200*time.Millisecond, answer)
		d := silentTime(t, tr, in)
		assert.GreaterOrEqual(t, d, 4*1200*time.Millisecond, "ejected after %s, though its peer took 1.2 s to answer", d)
	})
}

// A peer's answer from before the whole machine stopped proves nothing.
func TestPeer_AnswerBeforeMachineStall(t *testing.T) {
	t.Parallel()
	run(t, nil, func(tr *health.Tracker, src *source, eng *engine, _ *instance.Instance) {
		in, peer := instanceAt(instance.Decode, "d:1"), instanceAt(instance.Decode, "d:2")
		src.set(in, peer)
		resume := eng.hang("d:1")
		tr.Suspect(in)
		time.Sleep(300 * time.Millisecond)
		later := eng.hang("d:2")
		time.Sleep(30 * time.Second)
		assert.True(t, tr.Available(in.Key), "ejected while its peer is silent too")
		later()
		time.Sleep(11 * time.Second)
		assert.False(t, tr.Available(in.Key), "its peer is back, it is not, and it is still in")
		resume()
	})
}

// Bytes that a request receives from an instance count like the answer to a probe.
func TestSilence_EndedByRequestBytes(t *testing.T) {
	t.Parallel()
	var received atomic.Uint64
	run(t, func(o *health.Options) {
		o.Received = func(k instance.Key) uint64 {
			if k.Address == "d:1" {
				return received.Load()
			}
			return 0
		}
	}, func(tr *health.Tracker, src *source, eng *engine, _ *instance.Instance) {
		in, peer := instanceAt(instance.Decode, "d:1"), instanceAt(instance.Decode, "d:2")
		src.set(in, peer)
		resume := eng.hang("d:1")
		defer resume()
		for range 20 { // it streams, but does not answer probes
			tr.Suspect(in)
			time.Sleep(500 * time.Millisecond)
			received.Add(1)
			time.Sleep(500 * time.Millisecond)
			require.True(t, tr.Available(in.Key), "ejected although requests received bytes from it")
		}
		time.Sleep(10 * time.Second)
		silentTime(t, tr, in)
	})
}

// If decode instances can compute prompts, they are the peers of
// the last prefill instance, which has a longer limit.
func TestSilence_DecodeAsPeers(t *testing.T) {
	t.Parallel()
	run(t, func(o *health.Options) { o.PrefillOptional = true }, func(tr *health.Tracker, src *source, eng *engine, _ *instance.Instance) {
		in, other := instanceAt(instance.Prefill, "p:1"), instanceAt(instance.Decode, "d:1")
		src.set(in, other)
		resume := eng.hang("p:1")
		defer resume()
		d := silentTime(t, tr, in)
		assert.GreaterOrEqual(t, d, 5*time.Second, "ejected after %s", d)
	})
}

// An instance that serves other models, or is ejected for the model, cannot take over a silent instance's
// requests: it is no peer.
func TestTracker_PeersShareAModel(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		role    instance.Role // of the other one
		models  []string
		fails   string // the model for which it is ejected
		ejected bool
	}{
		{instance.Prefill, []string{"b"}, "", false},
		{instance.Prefill, []string{"b", "a"}, "", true},
		{instance.Prefill, []string{"b", "a"}, "a", false},
		{instance.Prefill, []string{"b", "a"}, "b", true},
		{instance.Decode, []string{"b"}, "", false},
		{instance.Decode, []string{"b", "a"}, "", true},
		{instance.Decode, []string{"b", "a"}, "a", false},
	} {
		in, other := instanceAt(instance.Prefill, "d:1"), instanceAt(tc.role, "d:2")
		in.Record.Models, other.Record.Models = []string{"a"}, tc.models
		run(t, func(o *health.Options) { o.PrefillOptional = true }, func(tr *health.Tracker, src *source, eng *engine, _ *instance.Instance) {
			src.set(in, other)
			for range 4 {
				if tc.fails != "" {
					tr.Strike(other, tc.fails, "5xx", false)
					tr.Success(other, "another")
				}
			}
			assert.Equal(t, tc.fails != "", tr.Failing(other.Key, tc.fails))
			resume := eng.hang("d:1")
			tr.Suspect(in)
			time.Sleep(20 * time.Second)
			assert.NotEqual(t, tc.ejected, tr.Available(in.Key),
				"beside %s of %v, ejected for %q: ejected %t", tc.role, tc.models, tc.fails, !tc.ejected)
			resume()
			time.Sleep(time.Second)
		})
	}
}
