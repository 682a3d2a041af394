package policy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
)

// TestPrefix_MemoryOfAllModels: the policies of all models share one limit. The least recently
// used prompt of any model is evicted first; closing a policy releases its memory.
func TestPrefix_MemoryOfAllModels(t *testing.T) {
	t.Parallel()
	const limit, models = 400 << 10, 50
	budget := indexmem.New(limit)
	list := fleet(1, 1, 1)
	policies := make([]Policy, models)
	for i := range policies {
		policies[i] = newKVAware(Options{Budget: budget, Caches: kvindex.New(budget)})
	}
	recorder := func(p Policy) Recorder {
		r, ok := p.(Recorder)
		require.True(t, ok, "%T records no prompts", p)
		return r
	}
	ask := func(model, n int) (cached int) {
		t.Helper()
		r := asking(prompt(1000*model+n, 3000))
		r.Model = fmt.Sprint(model)
		_, cached = policies[model].Choose(All(list), r)
		used := budget.Used(indexmem.Prompts)
		require.True(t, used <= limit, "%d bytes of %d", used, limit)
		return cached
	}
	for n := range 100 {
		for model := range models {
			ask(model, n)
			ask(0, 0) // a prompt that is repeated
		}
	}
	assert.NotEqual(t, 0, ask(0, 0), "the prompt in use was evicted")
	first, last := 0, 0
	for model := 1; model < models; model++ {
		if ask(model, 99) > 0 {
			last++
		}
		if ask(model, 0) > 0 {
			first++
		}
	}
	assert.True(t, first <= 0 && last >= models-1,
		"the first prompt of %d models is known, and the last one of %d", first, last)
	assert.True(t, budget.Evicted(indexmem.Prompts) != 0, "no eviction is counted")
	sum := 0
	for i := range policies {
		sum += recorder(policies[i]).Remembered().Memory
	}
	if used := budget.Used(indexmem.Prompts); int64(sum) != used || used < limit/2 {
		t.Errorf("%d bytes, the policies have %d", used, sum)
	}
	// One model may use the memory that the others do not need.
	for _, p := range policies[1:] {
		recorder(p).Close()
	}
	for n := range 2000 {
		ask(0, 100+n)
	}
	if used := budget.Used(indexmem.Prompts); used < limit*9/10 || int64(recorder(policies[0]).Remembered().Memory) != used {
		t.Errorf("one model has %d bytes of %d", used, limit)
	}
	ask(1, 0)
	recorder(policies[0]).Close()
	assert.EqualValues(t, 0, budget.Used(indexmem.Prompts), "bytes after all are closed")
}
