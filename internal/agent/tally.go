package agent

import (
	"errors"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

// Thresholds of the state machine.
const (
	downAfter = 3 // probes in a row that failed, or that nothing answered
	upAfter   = 2 // good probes in a row
)

// tally counts the probes since the last one of another kind.
type tally struct {
	period    time.Duration // that one probe without an answer represents
	slowAfter time.Duration

	goods, fails, silent int
	quiet                time.Duration // of the silent ones
}

// good notes a good probe and reports whether the engine is surely up.
func (t *tally) good() bool {
	t.fails, t.silent, t.quiet = 0, 0, 0
	t.goods++
	return t.goods >= upAfter
}

// bad notes a probe that was not good and reports whether the engine is surely down,
// and the cause. No answer of any kind for a while is less than an answer that is a
// refusal or an error: the engine may be busy.
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
		t.fails = max(t.fails, downAfter) // certain, not flaky
	}
	return "", t.fails >= downAfter
}
