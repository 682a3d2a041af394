package fakevllm

import (
	"strconv"
	"sync"
	"testing"
)

// Whoever has seen a number finds as many remarks.
func TestRemarksAreThereWhenTheyAreCounted(t *testing.T) {
	t.Parallel()
	s := &Server{}
	const times = 5000
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := range times {
			s.noteAbort(strconv.Itoa(i))
			s.violation("%d", i)
		}
	})
	for counted := int64(0); counted < times; {
		counted = s.count.aborted.Load()
		if n := int64(len(s.Aborted())); n < counted {
			t.Fatalf("%d aborts are counted, and %d are there", counted, n)
		}
		if v := s.count.violations.Load(); int64(len(s.Violations())) < v {
			t.Fatalf("%d violations are counted, and not all are there", v)
		}
	}
	writing.Wait()
}
