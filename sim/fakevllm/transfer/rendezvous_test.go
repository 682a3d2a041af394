package transfer

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Pull returns no expired blocks, even if no other call has checked their lease. Begin refuses an
// id that was used before.
func TestTransferAfterItsTime(t *testing.T) {
	t.Parallel()
	reused := 0
	tr := NewRendezvous(time.Millisecond, nil, func(string) { reused++ })
	assert.True(t, tr.Begin("x"), "a new id is refused")
	tr.Finish("x", 1, time.Now().Add(-time.Hour))
	if prompt, err := tr.Pull("x"); !errors.Is(err, ErrNoPrefill) {
		t.Errorf("got %d, %v", prompt, err)
	}
	if waiting, expired := tr.Counts(time.Now()); waiting != 0 || expired != 1 || reused != 0 {
		t.Errorf("%d wait, %d have expired, %d are reused", waiting, expired, reused)
	}
	assert.False(t, tr.Begin("x"), "an id that is over is accepted again")
	tr.Drop("y")
	assert.Equal(t, 0, len(tr.open), "open")
}

// A decode after a cancelled prefill does not reuse the id, since no decode got the blocks.
func TestPullAfterDrop(t *testing.T) {
	t.Parallel()
	reused := 0
	tr := NewRendezvous(time.Millisecond, nil, func(string) { reused++ })
	tr.Begin("x")
	tr.Drop("x")
	if _, err := tr.Pull("x"); !errors.Is(err, ErrNoPrefill) || reused != 0 {
		t.Errorf("%v, %d reused", err, reused)
	}
	tr.Begin("y")
	tr.Finish("y", 1, time.Now())
	for range 2 {
		_, _ = tr.Pull("y") // the second one finds nothing
	}
	assert.Equal(t, 1, reused, "reused")
}
