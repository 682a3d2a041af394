package ground

import "github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"

// Caches is how large the caches are.
type Caches struct {
	BlockSize int // of our tokens
	Blocks    int // of one engine
}

// blockSize is vLLM's default of 16 tokens.
const blockSize = 16

// NewCaches assigns each of n engines a part of what the whole workload would fill:
// with size 1 that is 1/n.
func NewCaches(w *Workload, n int, size float64) Caches {
	distinct := 0
	all := kvcache.New(kvcache.Config{BlockSize: blockSize, Blocks: w.tokens()/blockSize + len(w.Requests), Notify: func(e kvcache.Event) { distinct += len(e.Hashes) }})
	fill(w, all)
	return Caches{BlockSize: blockSize, Blocks: max(1, int(size*float64(distinct+n)/float64(n)))}
}

// tokens are those of all prompts.
func (w *Workload) tokens() int {
	sum := 0
	for i := range w.Requests {
		sum += len(w.Requests[i].Prompt())
	}
	return sum
}

// fill lets one prompt after the other through a cache.
func fill(w *Workload, cache *kvcache.Cache) {
	for i := range w.Requests {
		if h := cache.TryTake(w.Requests[i].Prompt(), ""); h != nil {
			h.Computed()
			h.Free()
		}
	}
}

// SharedHits is the part of all prompt tokens that one cache of the size of all would
// have found, with every prompt computed at once: what no router can exceed by much.
func SharedHits(w *Workload, c Caches, engines int) float64 {
	cache := kvcache.New(kvcache.Config{BlockSize: c.BlockSize, Blocks: c.Blocks * engines})
	fill(w, cache)
	s := cache.Stats()
	return float64(s.Hits) / float64(s.Queries)
}
