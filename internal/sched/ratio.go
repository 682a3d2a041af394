package sched

import (
	"math"
	"sync"
	"sync/atomic"
)

// ratio is the number of prompt bytes per token of one model, learned from the token counts of
// prefill instances. The zero value is usualRatio; it is safe for concurrent use.
type ratio struct{ bits atomic.Uint64 } // of a float64; 0: nothing has been learned

const (
	// usualRatio is the ratio of English text. An error affects all instances alike.
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

// learn adds a prompt with the given bytes and tokens to the average. One of two concurrent calls
// may be lost. Short prompts are ignored: most of their tokens come from the chat template.
func (r *ratio) learn(bytes, tokens int) {
	const short, least, most = 256, 0.5, 16
	seen := float64(bytes) / float64(tokens)
	if bytes < short || seen < least || seen > most {
		return // not text: an image has few tokens for its bytes
	}
	if old := r.bits.Load(); old != 0 {
		seen = math.Float64frombits(old)*(1-learning) + seen*learning
	}
	r.bits.Store(math.Float64bits(seen))
}

// ratios has the ratio of each model. Only requests with candidates add one, so there are at most as many as
// models were ever listed, at about 100 bytes each.
type ratios struct{ m sync.Map } // from string to *ratio

func (r *ratios) of(model string) *ratio {
	one, known := r.m.Load(model)
	if !known {
		one, _ = r.m.LoadOrStore(model, new(ratio))
	}
	is, _ := one.(*ratio)
	return is
}
