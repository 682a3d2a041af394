package agent

import (
	"errors"
	"time"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Thresholds of the state machine.
const (
	downAfter = 3 // failed or unanswered probes in a row
	upAfter   = 2 // good probes in a row
)

// tally counts consecutive probes with the same result.
type tally struct {
	period    time.Duration // time that one unanswered probe counts for
	slowAfter time.Duration

	successes, failures, timeouts int
	unanswered                    time.Duration // sum of period over the unanswered probes
}

// recordSuccess records a good probe and reports whether the engine is up.
func (t *tally) recordSuccess() bool {
	t.failures, t.timeouts, t.unanswered = 0, 0, 0
	t.successes++
	return t.successes >= upAfter
}

// recordFailure records a failed probe and reports whether the engine is down, and the cause. A missing
// answer takes longer to count than a refusal or an error, because the engine may be busy.
func (t *tally) recordFailure(err error) (cause string, down bool) {
	t.successes = 0
	if errors.Is(err, vllm.ErrTimeout) {
		t.timeouts++
		t.unanswered += t.period
		return instance.CauseSlow, t.timeouts >= downAfter && t.unanswered >= t.slowAfter
	}
	t.timeouts, t.unanswered = 0, 0
	t.failures++
	if _, ok := errors.AsType[*WrongModelError](err); ok {
		t.failures = max(t.failures, downAfter) // needs no confirmation
	}
	return "", t.failures >= downAfter
}
