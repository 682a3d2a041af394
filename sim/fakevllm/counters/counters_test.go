package counters_test

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/pdmesh/pdmesh/sim/fakevllm/counters"
)

// A reader of a number finds as many remarks.
func TestRemarksAreThereWhenTheyAreCounted(t *testing.T) {
	t.Parallel()
	c := new(counters.Counters)
	const times = 5000
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := range times {
			c.Abort(strconv.Itoa(i))
			c.Violate("%d", i)
		}
	})
	for counted := int64(0); counted < times; {
		counted = c.Read().Aborted
		if n := int64(len(c.Aborted())); n < counted {
			t.Fatalf("%d aborts are counted, and %d are there", counted, n)
		}
		if v := c.Read().Violations; int64(len(c.Violations())) < v {
			t.Fatalf("%d violations are counted, and not all are there", v)
		}
	}
	writing.Wait()
}

// The first remarks are kept, and all are counted.
func TestRemarksAreBounded(t *testing.T) {
	t.Parallel()
	c := new(counters.Counters)
	for i := range 10_001 {
		c.Abort(strconv.Itoa(i))
	}
	if list := c.Aborted(); len(list) != 10_000 || list[0] != "0" || c.Read().Aborted != 10_001 {
		t.Errorf("%d are kept, the first is %q, and %d are counted", len(list), list[0], c.Read().Aborted)
	}
}

// A request that reads wrong blocks is not counted as a refusal, but listed among them.
func TestRefusals(t *testing.T) {
	t.Parallel()
	c := new(counters.Counters)
	c.Refuse("a", errors.New("expired"))
	c.Mislead("b", "another prompt")
	if want := []string{"a: expired", "b: another prompt: the answer is wrong"}; !slices.Equal(c.Refusals(), want) {
		t.Errorf("%q, not %q", c.Refusals(), want)
	}
	if r := c.Read(); r.TransfersRefused != 1 || r.WrongKV != 1 {
		t.Errorf("%+v", r)
	}
}
