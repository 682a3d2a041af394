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

// Placed is a prompt that went to a target: what proxies tell each other of it.
type Placed struct {
	Model  uint32 // see ModelHash
	Target uint64 // hash of its address and rank
	Bytes  uint32 // of the prompt, those that were not in the target's cache
	// Keys are the last borders of the prompt, the last one last. Whatever begins with all
	// of the prompt has them, too; what goes on elsewhere in its last part has the first
	// ones.
	Keys [tail]Key
}

const (
	// tail is how many borders of a prompt are told. Three are a tenth of a long prompt.
	tail = 3
	// placedBytes is the size of one Placed as others read it.
	placedBytes = 4 + 8 + 4 + tail*8
	// scheme says how borders and hashes are made. Proxies of another one are not
	// understood.
	scheme = 2
	// mostPlaced bounds what is kept to be told, and what was heard and is kept for policies
	// that look seldom.
	mostPlaced = 4096
)

// ModelHash is the hash of a model in Placed.
func ModelHash(model string) uint32 { return uint32(xxhash.Sum64String(model)) } //nolint:gosec // the lower half

// Placements is where the policies of one proxy leave what they have placed, for the others,
// and where they find what the others have. It is safe for concurrent use.
type Placements struct {
	others    atomic.Bool   // see SetOthers
	heardUpTo atomic.Uint64 // how many were heard, ever

	mu    sync.Mutex // guards what follows; held for a copy only
	out   []Placed
	heard []Placed // the last ones
}

// SetOthers says whether there are other proxies, of which to hear and to whom to tell.
func (b *Placements) SetOthers(there bool) { b.others.Store(there) }

// Others reports whether there are other proxies. A nil board has none.
func (b *Placements) Others() bool { return b != nil && b.others.Load() }

// Tell leaves a prompt for the others, if there are any. Of too many the first ones are
// kept.
func (b *Placements) Tell(p Placed) {
	if !b.Others() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.out) < mostPlaced {
		b.out = append(b.out, p)
	}
}

// Waiting reports whether there is anything to tell.
func (b *Placements) Waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.out) > 0
}

// Take returns what the others should hear, in at most so many bytes, and forgets it.
// Prompts with most to compute come first.
func (b *Placements) Take(most int) []byte {
	b.mu.Lock()
	out := b.out
	b.out = nil
	b.mu.Unlock()
	if len(out) == 0 {
		return nil
	}
	slices.SortStableFunc(out, func(a, b Placed) int { return int(int64(b.Bytes) - int64(a.Bytes)) })
	out = out[:max(0, min(len(out), (most-1)/placedBytes))]
	if len(out) == 0 {
		return nil
	}
	raw := make([]byte, 0, 1+len(out)*placedBytes)
	raw = append(raw, scheme)
	for i := range out {
		p := &out[i]
		raw = binary.BigEndian.AppendUint32(raw, p.Model)
		raw = binary.BigEndian.AppendUint64(raw, p.Target)
		raw = binary.BigEndian.AppendUint32(raw, p.Bytes)
		for _, k := range p.Keys {
			raw = binary.BigEndian.AppendUint64(raw, uint64(k))
		}
	}
	return raw
}

// ErrPlaced is wrapped by the error of Read.
var ErrPlaced = errors.New("prompts of another proxy cannot be read")

// Read takes in what another proxy's Take gave.
func (b *Placements) Read(raw []byte) error {
	if len(raw) == 0 {
		return nil
	}
	if raw[0] != scheme {
		return fmt.Errorf("%w: scheme %d, this program reads %d", ErrPlaced, raw[0], scheme)
	}
	raw = raw[1:]
	if len(raw)%placedBytes != 0 {
		return fmt.Errorf("%w: %d bytes are no number of them", ErrPlaced, len(raw))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for ; len(raw) > 0; raw = raw[placedBytes:] {
		p := Placed{Model: binary.BigEndian.Uint32(raw), Target: binary.BigEndian.Uint64(raw[4:]), Bytes: min(binary.BigEndian.Uint32(raw[12:]), math.MaxInt32)}
		for i := range p.Keys {
			p.Keys[i] = Key(binary.BigEndian.Uint64(raw[16+8*i:]))
		}
		b.heard = append(b.heard, p)
		b.heardUpTo.Add(1)
	}
	if len(b.heard) > 2*mostPlaced {
		b.heard = slices.Clone(b.heard[len(b.heard)-mostPlaced:])
	}
	return nil
}

// Since returns what was heard of a model after the first so many, as far as it is kept,
// and how many that are now.
func (b *Placements) Since(seen uint64, model uint32) (news []Placed, now uint64) {
	if b.heardUpTo.Load() == seen {
		return nil, seen
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.heardUpTo.Load()
	fresh := min(now-seen, uint64(len(b.heard)))
	for _, p := range b.heard[uint64(len(b.heard))-fresh:] {
		if p.Model == model {
			news = append(news, p)
		}
	}
	return news, now
}

// Place makes what others are told of a prompt; ok is false for one that is too short.
func (c *Chain) Place(model uint32, target uint64, bytes int) (p Placed, ok bool) {
	if len(c.keys) < tail {
		return Placed{}, false
	}
	p = Placed{Model: model, Target: target, Bytes: uint32(min(max(bytes, 0), math.MaxInt32))} //nolint:gosec // bounded
	copy(p.Keys[:], c.keys[len(c.keys)-tail:])
	return p, true
}
