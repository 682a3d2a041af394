package sock_test

import (
	"testing"

	"github.com/pdmesh/pdmesh/internal/sock"
)

// looks lets h be asked n times, and tells it what is there, by turns.
func looks(h *sock.Hunch, n int, there ...bool) (taken int) {
	for range n {
		sock.Woken()
		if h.Try() {
			h.Found(there[taken%len(there)])
			taken++
		}
	}
	return taken
}

func TestHunch(t *testing.T) {
	for name, c := range map[string]struct {
		there    []bool
		min, max int // looks in 1,000 waits
	}{
		"always":             {[]bool{true}, 1000, 1000},
		"every second time":  {[]bool{true, false}, 1000, 1000},
		"two times of three": {[]bool{false, true, true}, 900, 1000},
		"every third time":   {[]bool{true, false, false}, 60, 150},
		"never":              {[]bool{false}, 45, 48},
	} {
		var h sock.Hunch
		if got := looks(&h, 1000, c.there...); got < c.min || got > c.max {
			t.Errorf("%s: %d looks in 1000 waits, not %d to %d", name, got, c.min, c.max)
		}
	}
	// One that was right for long is believed for some time, and then no more;
	// and the other way round.
	var h sock.Hunch
	looks(&h, 1000, true)
	if got := looks(&h, 1000, false); got < 16 || got > 70 {
		t.Errorf("%d looks in 1000 waits after all changed for the worse", got)
	}
	looks(&h, 1000, false)
	if got := looks(&h, 1000, true); got < 900 {
		t.Errorf("%d looks in 1000 waits after all changed for the better", got)
	}
}

// TestHunchLeavesRoom takes looks that find something for ever: the poller must come
// to its turn all the same.
func TestHunchLeavesRoom(t *testing.T) {
	var a, b sock.Hunch
	sock.Woken()
	for range 10 {
		n := 0
		for a.Try() && b.Try() {
			a.Found(true)
			b.Found(true)
			if n += 2; n > 100 {
				t.Fatalf("%d looks and nobody has asked the poller", n)
			}
		}
		if n < 20 {
			t.Fatalf("the poller was to be asked after %d looks", n)
		}
		if a.Try() || b.Try() {
			t.Fatal("a look before the poller was asked")
		}
		sock.Woken()
	}
}
