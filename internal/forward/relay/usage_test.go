package relay

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

const usageEvent = "data: {\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":9}}}\n\n"

// A stream with usage in each event waits once for a missing prefill answer, and has the correct numbers as
// soon as the answer arrives.
func TestUsageWaitsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := Usage{PrefillDone: make(chan struct{})}
		begun := time.Now() // by the bubble's clock, which advances while all goroutines wait
		for range 5 {
			assert.Equal(t, usageEvent, string(RewriteEvents(&u, []byte(usageEvent))))
		}
		assert.Equal(t, usageGrace, time.Since(begun), "it waited for")
		u.Prefilled([]byte(`{"usage":{"prompt_tokens_details":{"cached_tokens":4}}}`))
		assert.Contains(t, string(RewriteEvents(&u, []byte(usageEvent))), `"cached_tokens":4`)
		u.Prefilled([]byte(`{"usage":{"prompt_tokens":8,"prompt_tokens_details":{"cached_tokens":99999999999999999999}}}`))
		tokens, cached := u.Prompt()
		assert.Equal(t, []int{8, 8}, []int{tokens, cached}, "an engine counts more tokens than the prompt has")
		if u.Prefilled(nil); string(RewriteEvents(&u, []byte(usageEvent))) != usageEvent {
			t.Error("usage was reset, and is still reported")
		}
	})
}
