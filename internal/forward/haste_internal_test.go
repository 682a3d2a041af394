package forward

import (
	"testing"
	"time"
)

func TestHaste(t *testing.T) {
	t.Parallel()
	type read struct {
		after  time.Duration
		events int
		want   bool
	}
	const ms = time.Millisecond
	for name, reads := range map[string][]read{
		"one token every 10 ms": {{0, 1, false}, {10 * ms, 1, false}, {10 * ms, 1, false}, {10 * ms, 1, false}},
		"two at a time":         {{0, 2, false}, {10 * ms, 2, false}, {10 * ms, 2, false}},
		"a busy proxy":          {{0, 2, false}, {50 * ms, 5, false}, {50 * ms, 5, false}},
		"every 1.1 ms":          {{0, 2, false}, {ms * 11 / 10, 1, false}, {ms * 11 / 10, 1, false}},
		"every 0.7 ms":          {{0, 2, false}, {ms * 7 / 10, 1, true}, {ms, 1, false}, {ms * 7 / 10, 1, true}, {ms, 2, true}},
		"a burst":               {{0, 2, false}, {10 * ms, 1, false}, {0, 1, true}, {ms, 2, true}, {2 * ms, 3, false}, {10 * ms, 3, false}},
		"all from the first":    {{0, 3, true}, {ms, 60, true}, {20 * ms, 60, true}},
		"a late first read":     {{0, 3, true}, {ms, 0, false}, {10 * ms, 1, false}},
		"all at once":           {{0, 2, false}, {0, 1, true}, {ms, 60, true}, {20 * ms, 60, true}, {20 * ms, 39, false}},
	} {
		var h haste
		now := time.Now()
		for i, r := range reads {
			now = now.Add(r.after)
			if h.came(r.events, now); h.on != r.want {
				t.Errorf("%s: in a hurry after read %d: %v, want %v", name, i+1, h.on, r.want)
			}
		}
	}
}

// gathered notes what it is asked to wait for.
type gathered struct{ calls, n int }

func (g *gathered) Gather(n int, d time.Duration) {
	g.calls++
	g.n = n
}

// TestGathers only in a hurry, only until the closing event, and into a buffer that
// has room for it.
func TestGathers(t *testing.T) {
	t.Parallel()
	var s relay
	defer func() { s.release() }()
	var body gathered
	s.gather(&body)
	if s.makeRoom(); body.calls != 0 || len(s.buf) != smallBuffer {
		t.Fatalf("a stream of which nothing came: %d calls, %d bytes of room", body.calls, len(s.buf))
	}
	s.n = copy(s.buf, "half an ev")
	s.haste.came(1, time.Now())
	s.haste.came(1, s.haste.last)
	s.gather(nil) // a client that cannot wait
	s.gather(&body)
	if body.calls != 1 || string(s.buf[:s.n]) != "half an ev" || len(s.buf)-s.n < body.n {
		t.Fatalf("in a hurry: %d calls, %q, room for %d of %d", body.calls, s.buf[:s.n], len(s.buf)-s.n, body.n)
	}
	s.done = true
	s.gather(&body)
	if body.calls != 1 {
		t.Error("it waits behind the closing event")
	}
}
