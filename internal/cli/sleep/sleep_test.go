package sleep_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
)

func TestFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		require.True(t, sleep.For(t.Context(), time.Hour))
		assert.Equal(t, time.Hour, time.Since(start))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start = time.Now()
		assert.False(t, sleep.Until(ctx, start.Add(time.Hour)), "although the context ended")
		assert.Equal(t, time.Minute, time.Since(start), "although the context ended")
	})
}
