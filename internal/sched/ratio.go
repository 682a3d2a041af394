package sched

import (
	"math"
	"sync"
	"sync/atomic"
)

// ratio is how many bytes of a request make a token for one model, as prefill instances
// have counted them.
type ratio struct{ bits atomic.Uint64 } // of a float64; 0: nothing has been learned

const (
	// usualRatio is that of English text. A wrong one weighs all instances alike.
	usualRatio = 4.0
	// learning is the part that one answer has in what is learned.
	learning = 1.0 / 32
)

func (r *ratio) value() float64 {
	if bits := r.bits.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return usualRatio
}

func (r *ratio) tokens(bytes int) int { return int(float64(bytes) / r.value()) }

// learn takes in that so many bytes were so many tokens. Of two at once one may be
// lost. What is short says more of a chat's template than of its text.
func (r *ratio) learn(bytes, tokens int) {
	const short, least, most = 256, 0.5, 16
	seen := float64(bytes) / float64(tokens)
	if bytes < short || seen < least || seen > most {
		return // no text: an image has few tokens for its bytes
	}
	if old := r.bits.Load(); old != 0 {
		seen = math.Float64frombits(old)*(1-learning) + seen*learning
	}
	r.bits.Store(math.Float64bits(seen))
}

// ratios are those of all models. Names come from requests that have found candidates,
// so that there are as many as instances list.
type ratios struct {
	mu sync.RWMutex // guards m
	m  map[string]*ratio
}

func (r *ratios) of(model string) *ratio {
	r.mu.RLock()
	one := r.m[model]
	r.mu.RUnlock()
	if one != nil {
		return one
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if one = r.m[model]; one == nil {
		if r.m == nil {
			r.m = map[string]*ratio{}
		}
		one = new(ratio)
		r.m[model] = one
	}
	return one
}
