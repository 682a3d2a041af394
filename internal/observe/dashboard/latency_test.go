package dashboard

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Every duration is in the bucket whose bounds it is between.
func TestBuckets(t *testing.T) {
	t.Parallel()
	for i := range buckets - 1 {
		from, to := lower(i), lower(i+1)
		if to <= from {
			t.Fatalf("bucket %d is from %v to %v", i, from, to)
		}
		if got := bucket(from); got != i {
			t.Errorf("%v is in bucket %d, not %d", from, got, i)
		}
		if got := bucket(to - 1); got != i {
			t.Errorf("%v is in bucket %d, not %d", to-1, got, i)
		}
	}
	if got := lower(buckets - 1); got < 300*time.Second {
		t.Errorf("the last bucket begins at %v", got)
	}
	if got := bucket(time.Hour); got != buckets-1 {
		t.Errorf("an hour is in bucket %d", got)
	}
}

// Quantiles are right to about a tenth, and those of what came since the last look.
func TestQuantiles(t *testing.T) {
	t.Parallel()
	var l latency
	var c counted
	l.add(time.Hour)
	c.since(&l)
	var all []float64
	for range 5000 {
		ms := math.Exp(rand.NormFloat64() + 4)
		all = append(all, ms)
		l.add(time.Duration(ms * float64(time.Millisecond)))
	}
	slices.Sort(all)
	got, n := c.since(&l)
	if n != 5000 {
		t.Fatalf("%d of 5000 counted", n)
	}
	for _, q := range []float64{.5, .95} {
		want := all[int(q*5000)]
		if is := float64(got.quantile(q, n)); math.Abs(is-want) > want/8 {
			t.Errorf("%v is %v, want about %v", q, is, want)
		}
	}
	if got, n := c.since(&l); n != 0 || got.quantile(.5, n) != none {
		t.Errorf("%d after the last look", n)
	}
	l.add(0)
	if _, n := c.since(&l); n != 0 {
		t.Error("none was counted as one")
	}
}

func TestRingKeepsTheLast(t *testing.T) {
	t.Parallel()
	var r ring
	if r.line() != nil || r.last() != value(none) {
		t.Error("an empty ring has points")
	}
	r.add(none)
	if r.line() != nil {
		t.Error("a ring in which nothing was measured has a line")
	}
	for i := range points + 5 {
		r.add(float32(i))
	}
	line := r.line()
	if len(line) != points || line[0] != 5 || line[points-1] != points+4 || r.last() != points+4 {
		t.Errorf("%v", line)
	}
	r.add(none)
	b, err := json.Marshal(r.line()[points-3:])
	if want := "[63,64,null]"; err != nil || string(b) != want {
		t.Errorf("%s, %v; want %s", b, err, want)
	}
	for v, want := range map[value]string{0: "0", 0.123456: "0.123", 12.345: "12.3", 1234.5: "1234", value(math.NaN()): "null"} {
		if b, _ := json.Marshal(v); string(b) != want {
			t.Errorf("%v is written %s, want %s", float32(v), b, want)
		}
	}
}
