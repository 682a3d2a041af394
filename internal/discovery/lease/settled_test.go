package lease

import (
	"testing"
	"time"
)

// A revision is given when it was applied for a moment, also while others follow.
func TestSettled(t *testing.T) {
	t.Parallel()
	var s settled
	at := time.Now()
	for i, want := range []int64{0, 0, 0, 0, 1, 1, 1, 1, 5, 5, 5, 5, 9} {
		// One more each 5 ms; a pick has 20 ms to be counted.
		if got := s.see(int64(i+1), at.Add(time.Duration(i)*leavingLook/4)); got != want {
			t.Errorf("step %d: %d, want %d", i, got, want)
		}
	}
}
