package prefix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// Placed is a prompt that a proxy has sent to a target, as published to other proxies.
type Placed struct {
	Model  uint32 // see ModelHash
	Target uint64 // hash of the address and the rank
	Bytes  uint32 // of the part of the prompt that was not in the target's cache
	// Keys are the last borders of the prompt, in their order. A prompt that begins with all of this one has
	// all of them; one that diverges in the last part has only the first ones.
	Keys [tail]Key
}

const (
	// tail is the number of published borders of a prompt. Three borders are a tenth of a long prompt.
	tail = 3
	// placedBytes is the encoded size of one Placed.
	placedBytes = 4 + 8 + 4 + tail*8
	// scheme is the version of borders and hashes. Read rejects any other.
	scheme = 2
	// maxPlaced bounds the prompts that wait to be published. It also bounds the received ones that are kept
	// for policies that seldom call Since.
	maxPlaced = 4096
)

// ModelHash returns the hash of a model in Placed.
func ModelHash(model string) uint32 { return uint32(xxhash.Sum64String(model)) } //nolint:gosec // the lower half

// Placements exchanges the placed prompts between the policies of this proxy and other proxies.
// It is safe for concurrent use; the zero value is ready to use.
type Placements struct {
	others atomic.Bool   // see SetOthers
	total  atomic.Uint64 // number of prompts ever received

	mu       sync.Mutex // guards all below; held for a copy only
	out      []Placed
	received []Placed // the latest ones
}

// SetOthers sets whether there are other proxies. If there are none, nothing is published.
func (b *Placements) SetOthers(there bool) { b.others.Store(there) }

// Others reports whether there are other proxies. A nil Placements has none.
func (b *Placements) Others() bool { return b != nil && b.others.Load() }

// Publish queues a prompt for the other proxies, if there are any. It drops prompts beyond
// maxPlaced.
func (b *Placements) Publish(p Placed) {
	if !b.Others() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.out) < maxPlaced {
		b.out = append(b.out, p)
	}
}

// Waiting reports whether prompts wait to be published.
func (b *Placements) Waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.out) > 0
}

// Take removes the queued prompts and returns them encoded, in at most the given number of bytes. The prompts
// with the most bytes to compute come first; the rest is dropped.
func (b *Placements) Take(most int) []byte {
	b.mu.Lock()
	out := b.out
	b.out = nil
	b.mu.Unlock()
	slices.SortStableFunc(out, func(a, b Placed) int { return int(int64(b.Bytes) - int64(a.Bytes)) })
	out = out[:max(0, min(len(out), (most-1)/placedBytes))]
	if len(out) == 0 {
		return nil
	}
	raw, _ := binary.Append([]byte{scheme}, binary.BigEndian, out) // cannot fail: the size is fixed
	return raw
}

// ErrPlaced is wrapped by the error of Read.
var ErrPlaced = errors.New("prompts of another proxy cannot be read")

// Read adds the prompts that Take returned in another proxy.
func (b *Placements) Read(raw []byte) error {
	if len(raw) == 0 {
		return nil
	}
	if raw[0] != scheme {
		return fmt.Errorf("%w: scheme %d, this program reads %d", ErrPlaced, raw[0], scheme)
	}
	raw = raw[1:]
	if len(raw)%placedBytes != 0 {
		return fmt.Errorf("%w: %d bytes are not a multiple of the size", ErrPlaced, len(raw))
	}
	list := make([]Placed, len(raw)/placedBytes)
	if _, err := binary.Decode(raw, binary.BigEndian, list); err != nil {
		return fmt.Errorf("%w: %w", ErrPlaced, err)
	}
	for i := range list {
		list[i].Bytes = min(list[i].Bytes, math.MaxInt32)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.received = append(b.received, list...)
	b.total.Add(uint64(len(list)))
	if len(b.received) > 2*maxPlaced {
		b.received = slices.Clone(b.received[len(b.received)-maxPlaced:])
	}
	return nil
}

// Since returns the prompts of a model received after the first seen ones, if they are still kept, and the
// total number received.
func (b *Placements) Since(seen uint64, model uint32) (fresh []Placed, now uint64) {
	if b.total.Load() == seen {
		return nil, seen
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.total.Load()
	n := min(now-seen, uint64(len(b.received)))
	for _, p := range b.received[uint64(len(b.received))-n:] {
		if p.Model == model {
			fresh = append(fresh, p)
		}
	}
	return fresh, now
}

// Place returns the prompt in its published form; ok is false if it is too short.
func (c *Chain) Place(model uint32, target uint64, bytes int) (p Placed, ok bool) {
	if len(c.keys) < tail {
		return Placed{}, false
	}
	p = Placed{Model: model, Target: target, Bytes: uint32(min(max(bytes, 0), math.MaxInt32))} //nolint:gosec // bounded
	copy(p.Keys[:], c.keys[len(c.keys)-tail:])
	return p, true
}
