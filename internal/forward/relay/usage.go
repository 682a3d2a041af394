package relay

import (
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/openai"
)

// Usage puts the prefill instance's numbers about its cache into the answer: a decode
// instance counts the whole prompt as cached (protocol rule R10). It is safe for use
// by the goroutines of two legs.
type Usage struct {
	prefill atomic.Pointer[[]byte]
	// Coming, if not nil, is closed when the prefill instance's answer has come or
	// will not come. A decode instance may be quicker with its own.
	Coming <-chan struct{}
}

// usageGrace is how long an answer waits for the prefill instance's numbers. Its work
// is done when decode answers: only its last bytes can be on their way.
const usageGrace = time.Second

// await gives the prefill instance's answer, nil if there is none.
func (u *Usage) await() *[]byte {
	if u.Coming == nil {
		return u.prefill.Load()
	}
	late := time.NewTimer(usageGrace)
	defer late.Stop()
	select {
	case <-u.Coming:
	case <-late.C:
	}
	return u.prefill.Load()
}

// Prefilled notes the answer of the prefill instance; nil takes it back.
func (u *Usage) Prefilled(answer []byte) {
	if answer == nil {
		u.prefill.Store(nil)
		return
	}
	u.prefill.Store(&answer)
}

// Whole implements connector.Rewriter.
func (u *Usage) Whole(body []byte) []byte {
	if !openai.HasCachedTokens(body) {
		return body
	}
	answer := u.await()
	if answer == nil {
		return body
	}
	cached := openai.CachedTokens(*answer)
	if cached.Tokens == "" {
		return body
	}
	return openai.SetCachedTokens(body, cached)
}

// Events implements connector.Rewriter.
func (u *Usage) Events(batch []byte) []byte {
	if !openai.HasCachedTokens(batch) || u.await() == nil {
		return batch
	}
	return eachEvent(batch, u.Whole)
}

// eachEvent changes every event of a batch.
func eachEvent(batch []byte, change func([]byte) []byte) []byte {
	out := make([]byte, 0, len(batch)+8)
	for {
		event, rest, ok := openai.NextEvent(batch)
		if !ok {
			return append(out, batch...)
		}
		out = append(out, change(event)...)
		batch = rest
	}
}
