package disk_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/disk"
)

// What an operator wants is on disk within a second, however often leased
// instances come and go; those alone do not have the file written all the time.
func TestSaveWaitsForLeasedInstances(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var saves atomic.Int64
		s := disk.NewSaver(disk.SaverOptions{
			Age:  24 * time.Hour,
			Take: func(context.Context) (*disk.Image, bool) { saves.Add(1); return nil, true },
		})
		ended := make(chan struct{})
		go func() { s.Run(ctx); close(ended) }()
		churn := func(seconds int) (written int64) {
			before := saves.Load()
			for range 50 * seconds {
				s.Changed(false)
				time.Sleep(20 * time.Millisecond)
			}
			synctest.Wait()
			return saves.Load() - before
		}
		if n := churn(1); n != 1 {
			t.Errorf("the first change: %d writes in a second", n)
		}
		if n := churn(100); n < 9 || n > 10 {
			t.Errorf("%d writes in 100 s of leased instances alone", n)
		}
		time.Sleep(time.Second)
		s.Changed(true)
		if n := churn(1); n != 1 {
			t.Errorf("%d writes in the second after an operator's change", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		before := saves.Load()
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if saves.Load() == before {
			t.Error("while nothing changes it grows old")
		}
		cancel()
		<-ended
		synctest.Wait()
	})
}
