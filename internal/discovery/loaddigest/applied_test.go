package loaddigest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A revision counts once it has been applied for leavingPoll, even while newer ones follow.
func TestAppliedRevision(t *testing.T) {
	t.Parallel()
	var s appliedRevision
	at := time.Now()
	for i, want := range []int64{0, 0, 0, 0, 1, 1, 1, 1, 5, 5, 5, 5, 9} {
		// One revision each 5 ms; a pick has 20 ms to be counted.
		assert.Equal(t, want, s.update(int64(i+1), at.Add(time.Duration(i)*leavingPoll/4)), "step %d", i)
	}
}
