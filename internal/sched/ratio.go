package sched

import (
	"math"
	"sync"
	"sync/atomic"
)

// ratio is how many bytes of a prompt there are to a token of one model, learned from the
// token counts of prefill instances.
type ratio struct{ bits atomic.Uint64 } // of a float64; 0: nothing has been learned

const (
	// usualRatio is that of English text. If it is wrong, it is so for all instances.
	usualRatio = 4.0
	// learning is the weight of one answer in the average.
	learning = 1.0 / 32
)

func (r *ratio) value() float64 {
	if bits := r.bits.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return usualRatio
}

func (r *ratio) tokens(bytes int) int { return int(float64(bytes) / r.value()) }

// learn adds a prompt of so many bytes and so many tokens to the average. Of two calls at
// once one may be lost. A short prompt is left out: most of its tokens are the chat
// template's.
func (r *ratio) learn(bytes, tokens int) {
	const short, least, most = 256, 0.5, 16
	seen := float64(bytes) / float64(tokens)
	if bytes < short || seen < least || seen > most {
		return // it is no text: an image has few tokens for its bytes
	}
	if old := r.bits.Load(); old != 0 {
		seen = math.Float64frombits(old)*(1-learning) + seen*learning
	}
	r.bits.Store(math.Float64bits(seen))
}

// ratios has the ratio of each model. Their names come from requests that have found
// candidates, so there are no more than instances list.
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
