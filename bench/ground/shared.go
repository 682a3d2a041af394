package ground

import "github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"

// Caches is the size of the caches.
type Caches struct {
	BlockSize int // tokens of a replay
	Blocks    int // in one engine
}

// blockSize is vLLM's default of 16 tokens.
const blockSize = 16

// NewCaches returns caches for n engines that have size times the distinct blocks of the
// workload together.
func NewCaches(w *Workload, n int, size float64) Caches {
	distinct := 0
	all := kvcache.New(kvcache.Config{BlockSize: blockSize, Blocks: w.tokens()/blockSize + len(w.Requests), Notify: func(e kvcache.Event) { distinct += len(e.Hashes) }})
	fill(w, all)
	return Caches{BlockSize: blockSize, Blocks: max(1, int(size*float64(distinct+n)/float64(n)))}
}

// tokens returns the number of tokens of all prompts.
func (w *Workload) tokens() int {
	sum := 0
	for i := range w.Requests {
		sum += len(w.Requests[i].Prompt())
	}
	return sum
}

// fill computes all prompts with one cache, in their order.
func fill(w *Workload, cache *kvcache.Cache) {
	for i := range w.Requests {
		if h := cache.TryTake(w.Requests[i].Prompt(), ""); h != nil {
			h.Computed()
			h.Free()
		}
	}
}

// SharedHits returns the hit ratio of one cache of the size of all caches, if each prompt is
// computed immediately. No router can exceed it by much.
func SharedHits(w *Workload, c Caches, engines int) float64 {
	cache := kvcache.New(kvcache.Config{BlockSize: c.BlockSize, Blocks: c.Blocks * engines})
	fill(w, cache)
	s := cache.Stats()
	return float64(s.Hits) / float64(s.Queries)
}
