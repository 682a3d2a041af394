package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

func inFlight(role instance.Role, address string, n int64) LoadEntry {
	return LoadEntry{Key: instance.Key{Role: role, Address: address}, LoadCount: LoadCount{InFlight: n, Waiting: 10 * n, Held: 100 * n}}
}

// A digest omits zero values; other programs read this exact format.
func TestDigestText(t *testing.T) {
	t.Parallel()
	d := NewDigest(42, []LoadEntry{inFlight(instance.Decode, "d:1", 2), inFlight(instance.Prefill, "p:1", 0)}, time.Unix(1e9, 0).UTC())
	raw, err := json.Marshal(d)
	require.NoError(t, err)
	want := `{"v":1,"applied":42,"load":{"decode/d:1":{"in_flight":2,"waiting_tokens":20,"held_tokens":200}},"at":"2001-09-09T01:46:40Z"}`
	assert.Equal(t, want, string(raw))
	raw, err = json.Marshal(NewDigest(0, nil, time.Unix(1e9, 0).UTC()))
	assert.True(t, err == nil && strings.Contains(string(raw), `"load":{}`), "%s, %v", raw, err)
}

// A digest fits whatever the number of loads. It has all leaving instances,
// and no omitted instance has more in flight than an included one.
func TestDigestFits(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 500, 3000} {
		entries := make([]LoadEntry, n)
		for i := range entries {
			entries[i] = inFlight(instance.Decode, fmt.Sprintf("[2001:db8::%x]:%d", i, 10_000+i), rng.Int64N(maxCount/200))
			entries[i].Leaving = i%100 == 7
		}
		d := NewDigest(1<<62, entries, time.Now())
		raw, err := json.Marshal(d)
		require.True(t, err == nil && len(raw) <= maxDigest, "%d instances: %d bytes, %v", n, len(raw), err)
		assert.True(t, len(d.Load)+d.LeftOut == n && (n > 500 || d.LeftOut == 0),
			"%d instances: %d in it, %d left out", n, len(d.Load), d.LeftOut)
		least, most := int64(maxCount), int64(0)
		for _, e := range entries {
			c, in := d.Load[e.Key.String()]
			switch {
			case in && c != e.LoadCount:
				t.Fatalf("%s: %+v", e.Key, c)
			case e.Leaving && !in:
				t.Errorf("%s is left out although it is leaving", e.Key)
			case in && !e.Leaving:
				least = min(least, c.InFlight)
			case !in:
				most = max(most, e.InFlight)
			}
		}
		assert.LessOrEqual(t, most, least,
			"%d instances: one with %d in flight is left out, one with %d is not", n, most, least)
		if back, err := DecodeDigest(raw); err != nil || !back.Equal(&d) {
			t.Errorf("%d instances: read back otherwise, %v", n, err)
		}
	}
}

func TestDigestRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		``, `x`, `{}`, `[]`, `{"v":2,"load":{}}`, `{"v":1,"applied":-1}`, `{"v":1,"left_out":-1}`,
		`{"v":1,"load":{"decode/d:1":{"in_flight":-1}}}`, `{"v":1,"load":{"decode/d:1":{"held_tokens":1e99}}}`,
		`{"v":1,"load":{"decode/d:1":{"waiting_tokens":9007199254740993}}}`, `{"v":1,"load":{"d:1":{}}}`, `{"v":1,"load":{"encode/d:1":{}}}`,
		`{"v":1,"queue":[{"m":"m","c":3}]}`, `{"v":1,"queue":[{"m":"m","b":-1}]}`, `{"v":1,"queue":[{"m":"m","a":9007199254740993}]}`, `{"v":1,"queue":[{"m":"m","k":"a\u0000"}]}`,
		`{"v":1,"queue":[` + strings.Repeat(`{"m":"m"},`, MaxQueue) + `{"m":"m"}]}`,
		`{"v":1,"load":{"decode/":{}}}`, `{"v":1,"load":{"decode/d:1":{"in_flight":1.5}}}`, `{"v":1} ` + strings.Repeat(" ", maxDigest),
	} {
		if d, err := DecodeDigest([]byte(text)); !errors.Is(err, ErrDigest) || len(d.Load) > 0 && d.V == 1 && err == nil {
			t.Errorf("%.60q: %+v, %v", text, d, err)
		}
	}
	d, err := DecodeDigest([]byte(`{"v":1,"more":[1],"load":{"decode/d:1":{"in_flight":3,"else":{}}}}`))
	assert.True(t, err == nil && d.Load["decode/d:1"].InFlight == 3, "unknown fields: %+v, %v", d, err)
}

func FuzzDigest(f *testing.F) {
	f.Add(`{"v":1,"applied":3,"load":{"decode/d:1":{"in_flight":3,"waiting_tokens":1,"held_tokens":2}}}`)
	f.Add(`{"v":2}`)
	f.Add(`{"v":1,"load":{"prefill/x":{"in_flight":-3}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		d, err := DecodeDigest([]byte(text))
		if err != nil {
			require.True(t, d.Load == nil, "%q is refused and used: %+v", text, d)
			return
		}
		for key, c := range d.Load {
			if min(c.InFlight, c.Waiting, c.Held) < 0 || max(c.InFlight, c.Waiting, c.Held) > maxCount || !strings.Contains(key, "/") {
				t.Fatalf("%q: %s %+v", text, key, c)
			}
		}
		raw, err := json.Marshal(d)
		require.NoError(t, err)
		if again, err := DecodeDigest(raw); len(raw) <= maxDigest && (err != nil || !again.Equal(&d)) {
			t.Fatalf("%q: %s is read otherwise: %v", text, raw, err)
		}
	})
}

// Small changes of the load wait; large changes and changes of the membership do not.
func TestDigest_SignificantChanges(t *testing.T) {
	t.Parallel()
	of := func(applied, inFlight, held int64) *Digest {
		return &Digest{Applied: applied, Load: map[string]LoadCount{"decode/d:1": {InFlight: inFlight, Held: held}}}
	}
	before := of(1, 100, 100_000)
	for _, c := range []struct {
		now  *Digest
		want bool
	}{
		{of(1, 100, 100_000), false}, {of(1, 109, 109_000), false}, {of(1, 111, 100_000), true}, {of(1, 89, 100_000), true},
		{of(1, 100, 120_000), true}, {of(2, 100, 100_000), true}, {&Digest{Applied: 1}, true},
	} {
		assert.Equal(t, c.want, c.now.Differs(before), c.now)
	}
	assert.Equal(t, true, of(1, 1, 1).Differs(nil), "the first digest, or one more leg of few, must differ")
	assert.Equal(t, true, of(1, 2, 1).Differs(of(1, 1, 1)), "the first digest, or one more leg of few, must differ")
}

// The state of the queue takes at most 4 KiB. It is published
// when a backlog changes, not while the service rate decays.
func TestDigestQueue(t *testing.T) {
	t.Parallel()
	of := func(entries ...QueueEntry) *Digest {
		d := NewDigest(1, nil, time.Unix(1e9, 0))
		d.SetQueue(entries)
		return &d
	}
	var many []QueueEntry
	for i := range 200 {
		many = append(many, QueueEntry{Model: "a/model", Class: i % 3, Key: fmt.Sprint("key-", i), Attained: 1e9, Backlog: 1e9})
	}
	d := of(many...)
	raw, err := json.Marshal(d)
	assert.True(t, err == nil && len(raw) <= 4<<10+256 && len(d.Queue) >= 40 && len(d.Queue) <= MaxQueue,
		"%d entries in %d bytes, %v", len(d.Queue), len(raw), err)
	back, err := DecodeDigest(raw)
	assert.True(t, err == nil && len(back.Queue) == len(d.Queue) && back.Queue[3] == many[3], "%+v, %v", back, err)
	assert.Len(t, of(QueueEntry{Model: strings.Repeat("m", 5000), Backlog: 1}).Queue, 0, "an entry of 5000 bytes fits")
	waits := QueueEntry{Model: "m", Key: "a", Backlog: 10_000}
	for _, tc := range []struct {
		name string
		now  *Digest
		was  *Digest
		want bool
	}{
		{"nothing", of(), of(), false},
		{"fades", of(QueueEntry{Model: "m", Attained: 1}), of(QueueEntry{Model: "m", Attained: 1e6}), false},
		{"left", of(), of(QueueEntry{Model: "m", Attained: 1e6}), false},
		{"begins", of(waits), of(), true},
		{"the same", of(waits), of(waits), false},
		{"grows a little", of(QueueEntry{Model: "m", Key: "a", Backlog: 11_000}), of(waits), false},
		{"grows", of(QueueEntry{Model: "m", Key: "a", Backlog: 13_000}), of(waits), true},
		{"another key", of(QueueEntry{Model: "m", Key: "b", Backlog: 10_000}), of(waits), true},
		{"ends", of(), of(waits), true},
	} {
		if got := tc.now.Differs(tc.was); got != tc.want || tc.now.Equal(tc.was) == tc.want {
			t.Errorf("%s: differs %t, want %t", tc.name, got, tc.want)
		}
	}
}

// The demand of keys takes at most 6 KiB and 64 keys, whatever the number of keys.
// A digest with other keys is written soon; impossible values are refused.
func TestDigestKeys(t *testing.T) {
	t.Parallel()
	for _, length := range []int{3, 64} {
		all := map[string][]int64{}
		for i := range 200 {
			all[fmt.Sprintf("%0*d", length, i)] = []int64{maxCount, maxCount, maxCount, maxCount, maxCount}
		}
		d, without := NewDigest(1, nil, time.Now()), NewDigest(1, nil, time.Now())
		d.SetKeys(all)
		raw, err := json.Marshal(d)
		assert.True(t, err == nil && len(raw) <= maxKeySize+200 && len(d.Keys) <= maxKeys && len(d.Keys) >= 20,
			"%d keys, %d bytes, %v", len(d.Keys), len(raw), err)
		if again, err := DecodeDigest(raw); err != nil || !again.Equal(&d) || again.Differs(&d) || !again.Differs(&without) || again.Equal(&without) {
			t.Errorf("%v: %+v", err, again)
		}
	}
	a, b := NewDigest(1, nil, time.Now()), NewDigest(1, nil, time.Now())
	a.SetKeys(map[string][]int64{"a": {600}})
	b.SetKeys(map[string][]int64{"a": {640}})
	assert.False(t, a.Differs(&b), "a change by less than a tenth is urgent, or is none")
	assert.False(t, a.Equal(&b), "a change by less than a tenth is urgent, or is none")
	for _, bad := range []string{`{"a":[-1]}`, `{"a":[1099511627777]}`, `{"a":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}`, `{"a":1}`} {
		_, err := DecodeDigest([]byte(`{"v":1,"load":{},"keys":` + bad + `}`))
		assert.True(t, err != nil && strings.Contains(err.Error(), "invalid load digest"), "%s: %v", bad, err)
	}
}
