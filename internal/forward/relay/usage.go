package relay

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

// Usage puts the prefill instance's numbers about its cache into the answer: a decode
// instance counts the whole prompt as cached (TestCachedTokens_OfPrefill). It is safe for use
// by the goroutines of two legs.
type Usage struct {
	Kind    openai.Kind                     // of the request and of both answers
	prefill atomic.Pointer[response.Cached] // nil while nothing is known
	// PrefillDone, if not nil, is closed when prefill has answered or failed. Decode may answer before.
	PrefillDone <-chan struct{}
}

// usageGrace bounds the wait of an answer for prefill's numbers. When decode answers,
// prefill has computed everything: at most its last bytes have not arrived.
const usageGrace = time.Second

// await returns the prefill instance's numbers, nil if there are none. It waits only once.
func (u *Usage) await() *response.Cached {
	if u.PrefillDone == nil {
		return u.prefill.Load()
	}
	late := time.NewTimer(usageGrace)
	defer late.Stop()
	select {
	case <-u.PrefillDone:
	case <-late.C:
		u.PrefillDone = nil // else each event with such numbers would wait
	}
	return u.prefill.Load()
}

// Prompt returns the number of prompt tokens that prefill has counted, and the number of them
// that were in its cache; 0 if not known.
func (u *Usage) Prompt() (tokens, cached int) {
	c := u.prefill.Load()
	if c == nil {
		return 0, 0
	}
	cached, _ = strconv.Atoi(c.Tokens) // null, where the engine does not report it, becomes 0
	return c.Prompt, min(cached, c.Prompt)
}

// Prefilled records the numbers of a prefill instance's answer; nil deletes them. The answer
// itself is not kept: a long prompt has many block ids, and a stream may stay open for hours.
func (u *Usage) Prefilled(answer []byte) {
	u.prefill.Store(nil)
	if cached := response.CachedTokens(u.Kind, answer); answer != nil && cached.Tokens != "" {
		u.prefill.Store(&cached)
	}
}

// Affects implements Rewriter.
func (u *Usage) Affects(b []byte) bool {
	return response.HasCachedTokens(u.Kind, b) && u.await() != nil
}

// Rewrite implements Rewriter.
func (u *Usage) Rewrite(b []byte) []byte {
	if cached := u.await(); cached != nil { // the other leg may delete the numbers
		return response.SetCachedTokens(u.Kind, b, *cached)
	}
	return b
}
