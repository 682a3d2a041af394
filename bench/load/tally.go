package load

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// Tally counts what came of requests.
type Tally struct {
	// Right are requests whose answers were complete and right, Tokens all
	// tokens that came, in answers that are still under way too.
	Right, Tokens atomic.Uint64
	// Wrong are answers with status 200 that had other bytes than the right
	// one, or ended cleanly before their end.
	Wrong atomic.Uint64
	// Broken are answers whose connection broke before their end, Failed
	// requests that got no answer, or one with another status.
	Broken, Failed atomic.Uint64
	// Left are answers that the generator itself left before their end.
	Left atomic.Uint64

	TTFT, ITL, Total loadgen.Histogram

	mu       sync.Mutex // guards problems
	problems []string
}

// maxProblems bounds the list of Problems.
const maxProblems = 5

// Problems are the first few of what went wrong.
func (t *Tally) Problems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.problems...)
}

func (t *Tally) problem(counter *atomic.Uint64, err error) {
	counter.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.problems) < maxProblems {
		t.problems = append(t.problems, err.Error())
	}
}

// Bad is the number of requests that should have been answered right and were
// not.
func (t *Tally) Bad() uint64 { return t.Wrong.Load() + t.Broken.Load() + t.Failed.Load() }

// String is for people.
func (t *Tally) String() string {
	return fmt.Sprintf("%d right, %d wrong, %d broken, %d failed, %d left, %d tokens, TTFT p50 %v", t.Right.Load(), t.Wrong.Load(),
		t.Broken.Load(), t.Failed.Load(), t.Left.Load(), t.Tokens.Load(), t.TTFT.Quantile(0.5))
}
