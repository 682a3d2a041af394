package kvindex

import (
	"hash/maphash"
	"math/bits"
	"math/rand/v2"

	"github.com/tinylib/msgp/msgp"
)

// Key is the name of a block: a hash of its tokens and all tokens before them. The hash has a random seed in
// each process, so that clients cannot construct prompts whose names collide.
type Key uint64

// secrets are odd, so that multiplications lose few bits.
//
//nolint:gochecknoglobals // of the process, like the seed of a map
var (
	secrets = [3]uint64{rand.Uint64() | 1, rand.Uint64() | 1, rand.Uint64() | 1}
	seed    = maphash.MakeSeed() // for texts
)

// mix is one round of a chain. It combines both halves of a 128-bit product.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^secrets[0], b^secrets[1])
	return hi ^ lo
}

// Chain appends to dst the names of the full blocks of a prompt, for instances whose blocks hold blockSize
// tokens. lora is the adapter's name and salt is cache_salt; both may be empty. It allocates nothing except
// to grow dst.
func Chain(dst []Key, tokens []uint32, blockSize int, lora, salt string) []Key {
	if blockSize <= 0 {
		return dst
	}
	parent := root(lora)
	extra := uint64(0)
	if salt != "" {
		extra = maphash.String(seed, salt)
	}
	for len(tokens) >= blockSize {
		parent = block(parent, tokens[:blockSize], extra)
		extra = 0 // cache_salt is in the first block only; the others have it through their parents
		dst = append(dst, parent)
		tokens = tokens[blockSize:]
	}
	return dst
}

// root returns the parent of the first block of a prompt.
func root(lora string) Key { return Key(mix(maphash.String(seed, lora), secrets[2])) }

// block returns the name of a block. extra represents everything except tokens that it depends on, 0 for
// nothing.
func block(parent Key, tokens []uint32, extra uint64) Key {
	h := mix(uint64(parent), uint64(len(tokens))^extra)
	for len(tokens) >= 2 {
		h = mix(h, uint64(tokens[0])|uint64(tokens[1])<<32)
		tokens = tokens[2:]
	}
	if len(tokens) > 0 {
		h = mix(h, uint64(tokens[0])|secrets[2]<<32)
	}
	return Key(h)
}

// extras combines the extra keys of a block in an event to one number. array, in MessagePack, has the
// adapter's name, which is skipped since the chain begins with it, cache_salt, and other keys, which only
// need to differ. For cache_salt alone, the result is that of Chain.
func extras(array, lora []byte) uint64 {
	if array == nil {
		return 0
	}
	n, rest, err := msgp.ReadArrayHeaderBytes(array)
	if err != nil {
		return maphash.Bytes(seed, array)
	}
	var sum uint64
	for range n {
		next, err := msgp.Skip(rest)
		if err != nil {
			return maphash.Bytes(seed, array)
		}
		item := rest[:len(rest)-len(next)]
		rest = next
		var one uint64
		if msgp.NextType(item) == msgp.StrType {
			s, _, err := msgp.ReadStringZC(item)
			if err == nil && len(lora) > 0 && string(s) == string(lora) {
				lora = nil // once: cache_salt may be the same word
				continue
			}
			one = maphash.Bytes(seed, s)
		} else {
			one = mix(maphash.Bytes(seed, item), secrets[2])
		}
		if sum == 0 {
			sum = one
		} else {
			sum = mix(sum, one)
		}
	}
	return sum
}
