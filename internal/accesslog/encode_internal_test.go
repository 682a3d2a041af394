package accesslog

import (
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // a zone that changes its offset, wherever the test runs

	"github.com/pdmesh/pdmesh/internal/forward"
)

// typical is what most lines are of.
func typical() *forward.Entry {
	return &forward.Entry{
		RequestID: "3f6c1f0e-8f0a-4b53-9c0d-2a57f1f4a9d6", Client: "10.20.30.40:51234", Method: "POST",
		Path: "/v1/chat/completions", Model: "meta-llama/Llama-3.1-8B-Instruct", Stream: true,
		Status: 200, Outcome: forward.OutcomeOK, Prefill: "10.0.12.17:8100", Decode: "10.0.12.18:8200", Revision: 123456,
		BytesIn: 345, BytesOut: 2789, Start: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)),
		Duration: 12345 * time.Microsecond, TTFT: 2003 * time.Microsecond,
	}
}

// check writes entries into one log of each form, in their order, and compares
// every line with the reference.
func check(t testing.TB, entries ...*forward.Entry) {
	t.Helper()
	text, object := New(Options{}), New(Options{JSON: true})
	for i, e := range entries {
		text.buf, object.buf = text.buf[:0], object.buf[:0]
		text.Write(e)
		object.Write(e)
		if want := referenceText(e); string(text.buf) != want {
			t.Fatalf("text, line %d:\ngot  %qwant %q", i, text.buf, want)
		}
		if want := referenceJSON(e); string(object.buf) != want {
			t.Fatalf("JSON, line %d:\ngot  %qwant %q", i, object.buf, want)
		}
	}
}

// with is typical with a change.
func with(change func(*forward.Entry)) *forward.Entry {
	e := typical()
	change(e)
	return e
}

// Every field is there when it should be, and in its place.
func TestFields(t *testing.T) {
	t.Parallel()
	check(t, typical(), &forward.Entry{},
		with(func(e *forward.Entry) { e.Stream = false }),
		with(func(e *forward.Entry) { e.Prefill, e.Alone = "", "no_prefill" }),
		with(func(e *forward.Entry) { e.Decode, e.Failure = "", "connect" }),
		with(func(e *forward.Entry) { e.KeyName = "team-a" }),
		with(func(e *forward.Entry) { e.Elsewhere = "prefill:session_overloaded(10.0.0.1:8100);decode:zone_none" }),
		with(func(e *forward.Entry) { e.Outcome, e.Status, e.Attempts = forward.OutcomeClientError, 499, 3 }),
		with(func(e *forward.Entry) {
			e.RequestID, e.Client, e.Method, e.Path, e.Model, e.Outcome = "a b", `c"d`, "E\x00", "/ü", "f\\g", "h\xff"
			e.Prefill, e.Decode, e.Alone, e.Failure = "i=j", "k,l", "m\n", "n\u2028"
		}))
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{math.MinInt64, -1000, -1, 0, 1, 9, 10, 99, 100, 101, 999, 1000, 999_999, 1_000_000, 12_345_678, math.MaxInt64} {
		check(t, with(func(e *forward.Entry) { e.Status, e.Attempts = int(n), int(n) }),
			with(func(e *forward.Entry) { e.Revision, e.BytesIn, e.BytesOut = n, n, n }),
			with(func(e *forward.Entry) { e.Duration = time.Duration(n) }),
			with(func(e *forward.Entry) { e.TTFT = time.Duration(n) }))
	}
	// All thousandths, and both sides of each.
	e := typical()
	for us := range 1001 {
		for _, ns := range []time.Duration{-1, 0, 1} {
			e.TTFT = time.Duration(us)*time.Microsecond + ns
			e.Duration = 7*time.Second + e.TTFT
			check(t, e)
		}
	}
}

// What is kept of one line's time must not show in one of another second, or of
// another place.
func TestTimes(t *testing.T) {
	t.Parallel()
	at := func(times ...time.Time) {
		t.Helper()
		var entries []*forward.Entry
		for _, s := range times {
			entries = append(entries, with(func(e *forward.Entry) { e.Start = s.Add(-e.Duration) }))
		}
		check(t, entries...)
	}
	base := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at(base, base.Add(999_999_999), base.Add(time.Second), base, base.Add(-1), base.Add(-time.Second), base.AddDate(1, 0, 0))
	at(time.Unix(0, 0).UTC(), time.Unix(0, 0), time.Time{}, time.Now())

	// Fractions: as short as can be in one form, three digits in the other.
	for ns := 1; ns < 1e9; ns *= 10 {
		at(base.Add(time.Duration(ns)), base.Add(time.Duration(1e9-ns)), base.Add(time.Duration(ns)*7%time.Second))
	}

	// One second in several places, some of which are not whole minutes away.
	var places []time.Time
	for _, offset := range []int{0, 1, -1, 59, -59, 60, -60, 3600, -3600, 19_800, -12_600, 50_400, 3601, -86_399} {
		places = append(places, base.In(time.FixedZone("same", offset)))
	}
	at(places...)
	slices.Reverse(places)
	at(places...)

	// Years that take more than their four digits, then one that does not.
	for _, year := range []int{9999, 10_000, 123_456, 0, -1, -12_345, 2026} {
		places = append(places, time.Date(year, 12, 31, 23, 59, 59, 999_999_999, time.UTC), time.Date(year, 2, 3, 4, 5, 6, 0, time.UTC))
	}
	at(places...)

	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []time.Time{time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC), time.Date(2026, 10, 25, 1, 0, 0, 0, time.UTC)} {
		change = change.In(berlin)
		at(change.Add(-time.Hour), change.Add(-1), change, change.Add(1), change.Add(time.Hour))
	}
}

// Names of models are cut, what is not to be shown of them counts by what it is
// shown as.
func TestModels(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"x", " ", `"`, "\n", "ü", "\xff", "\u200b"} {
		for n := range maxModel + 10 {
			check(t, with(func(e *forward.Entry) { e.Model = strings.Repeat(unit, n) }))
		}
		for n := maxModel - 10; n < maxModel+3; n++ {
			check(t, with(func(e *forward.Entry) { e.Model = strings.Repeat("m", n) + unit + "m" }))
		}
	}
}

// Lines of many at once do not mix, nor do their times.
func TestConcurrentWrites(t *testing.T) {
	t.Parallel()
	l := New(Options{})
	want := map[string]int{}
	var writers sync.WaitGroup
	for i := range 8 {
		zone := time.FixedZone("", i*1800)
		entries := make([]*forward.Entry, 200)
		for k := range entries {
			entries[k] = with(func(e *forward.Entry) { e.Start = e.Start.Add(time.Duration(k) * 100 * time.Millisecond).In(zone) })
			want[referenceText(entries[k])]++
		}
		writers.Go(func() {
			for _, e := range entries {
				l.Write(e)
			}
		})
	}
	writers.Wait()
	for line := range strings.Lines(string(l.buf)) {
		if want[line]--; want[line] < 0 {
			t.Fatalf("%q is no line, or too often", line)
		}
	}
	for line, n := range want {
		if n != 0 {
			t.Errorf("%d of %q are missing", n, line)
		}
	}
}

// A line costs no memory, not even the first of a second.
func TestWriteAllocatesNothing(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		l := New(Options{JSON: asJSON})
		l.buf = make([]byte, 0, 1<<20)
		e := typical()
		n := testing.AllocsPerRun(200, func() {
			e.Start = e.Start.Add(300 * time.Millisecond)
			l.Write(e)
		})
		if n != 0 {
			t.Errorf("JSON %t: %v allocations for a line", asJSON, n)
		}
	}
}

// FuzzLine holds two lines of anything, the second so much later and elsewhere,
// against the reference.
func FuzzLine(f *testing.F) {
	e := typical()
	f.Add(e.RequestID, e.Client, e.Path, e.Model, e.Decode, "", e.Stream, e.Status, e.Revision, e.BytesOut,
		e.Start.UnixNano(), int64(e.Duration), int64(e.TTFT), int64(time.Second), 3600)
	f.Add("a=b", "[fe80::1%eth0]:1", "/ü", "größer\x1b", "\xff", "no_prefill", false, -1, int64(-1), int64(math.MinInt64),
		int64(-1), int64(-1), int64(-1), int64(1), -59)
	f.Fuzz(func(t *testing.T, id, client, path, model, decode, alone string, stream bool, status int, revision, n, start, duration, ttft, later int64, offset int) {
		e := &forward.Entry{
			RequestID: id, Client: client, Method: alone, Path: path, Model: model, Stream: stream, Status: status, Outcome: decode,
			Prefill: client, Decode: decode, Alone: alone, Elsewhere: decode, Attempts: status, Failure: forward.Class(id), Revision: revision,
			BytesIn: n, BytesOut: n, Start: time.Unix(0, start).UTC(), Duration: time.Duration(duration), TTFT: time.Duration(ttft),
		}
		next := *e
		next.Start = next.Start.Add(time.Duration(later))
		there := next
		there.Start = there.Start.In(time.FixedZone("", offset%86_400))
		check(t, e, &next, &there, e)
	})
}

// benchmarkLines writes a line every 50 µs by the entries' clock, and the
// buffer out as often as Run does when there is much.
func benchmarkLines(b *testing.B, asJSON bool, e *forward.Entry) {
	l := New(Options{Out: io.Discard, JSON: asJSON})
	var spare []byte
	b.ReportAllocs()
	for b.Loop() {
		e.Start = e.Start.Add(50 * time.Microsecond)
		l.Write(e)
		if len(l.buf) >= flushAt {
			spare = l.flush(spare)
		}
	}
}

func BenchmarkWriteText(b *testing.B) { benchmarkLines(b, false, typical()) }

func BenchmarkWriteJSON(b *testing.B) { benchmarkLines(b, true, typical()) }

// Not all that clients write can stand in a line as it is.
func BenchmarkWriteOdd(b *testing.B) {
	e := typical()
	e.RequestID, e.Path, e.Model = "team=a,turn=7", "/v1/chat/completions?", "größer/\x1bmodell"
	b.Run("text", func(b *testing.B) { benchmarkLines(b, false, e) })
	b.Run("json", func(b *testing.B) { benchmarkLines(b, true, e) })
}
