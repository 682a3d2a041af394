package continuation_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/continuation"
)

// The oldest stream goes on first, and one that has left takes no turn.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p continuation.Pace
		end, err := p.Begin(t.Context(), time.Now(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if p.TryBegin(1) != nil {
			t.Error("two turns of one")
		}
		began := time.Now()
		turns := make(chan int, 4)
		wait := func(ctx context.Context, age int) {
			end, err := p.Begin(ctx, began.Add(-time.Duration(age)*time.Second), 1)
			if err != nil {
				turns <- -age
				return
			}
			turns <- age
			end()
		}
		leaving, leave := context.WithCancelCause(t.Context())
		go wait(t.Context(), 1)
		go wait(leaving, 5)
		go wait(t.Context(), 3)
		go wait(t.Context(), 2)
		synctest.Wait()
		if p.TryBegin(2) != nil {
			t.Error("a turn before the streams that wait")
		}
		leave(errors.New("left"))
		synctest.Wait()
		end()
		synctest.Wait()
		var got [4]int
		for i := range got {
			got[i] = <-turns
		}
		if got != [4]int{-5, 3, 2, 1} {
			t.Errorf("turns %v", got)
		}
		if end = p.TryBegin(1); end == nil { // nothing moves any more
			t.Fatal("no turn")
		}
		end()
		end, err = p.Begin(t.Context(), began, 1)
		if err != nil {
			t.Fatal(err)
		}
		end()
	})
}
