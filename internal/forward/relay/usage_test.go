package relay

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
			if got := string(RewriteEvents(&u, []byte(usageEvent))); got != usageEvent {
				t.Errorf("%q", got)
			}
		}
		if waited := time.Since(begun); waited != usageGrace {
			t.Errorf("it waited for %v", waited)
		}
		u.Prefilled([]byte(`{"usage":{"prompt_tokens_details":{"cached_tokens":4}}}`))
		if got := string(RewriteEvents(&u, []byte(usageEvent))); !strings.Contains(got, `"cached_tokens":4`) {
			t.Errorf("%q", got)
		}
		if u.Prefilled(nil); string(RewriteEvents(&u, []byte(usageEvent))) != usageEvent {
			t.Error("usage was reset, and is still reported")
		}
	})
}
