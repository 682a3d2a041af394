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

	goods, fails, silent int
	quiet                time.Duration // sum of period over the unanswered probes
}

// good records a good probe and reports whether the engine is up.
func (t *tally) good() bool {
	t.fails, t.silent, t.quiet = 0, 0, 0
	t.goods++
	return t.goods >= upAfter
}

// bad records a failed probe and reports whether the engine is down, and the cause. A missing
// answer takes longer to count than a refusal or an error, because the engine may be busy.
func (t *tally) bad(err error) (cause string, down bool) {
	t.goods = 0
	if errors.Is(err, vllm.ErrTimeout) {
		t.silent++
		t.quiet += t.period
		return instance.CauseSlow, t.silent >= downAfter && t.quiet >= t.slowAfter
	}
	t.silent, t.quiet = 0, 0
	t.fails++
	if _, ok := errors.AsType[*WrongModelError](err); ok {
		t.fails = max(t.fails, downAfter) // needs no confirmation
	}
	return "", t.fails >= downAfter
}
