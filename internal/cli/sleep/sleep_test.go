package sleep_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
)

func TestFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if !sleep.For(t.Context(), time.Hour) || time.Since(start) != time.Hour {
			t.Errorf("returned after %s", time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start = time.Now()
		if sleep.Until(ctx, start.Add(time.Hour)) || time.Since(start) != time.Minute {
			t.Errorf("returned after %s although the context ended", time.Since(start))
		}
	})
}
