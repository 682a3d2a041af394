package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"
)

// ErrBatch is wrapped by the errors of Decode.
var ErrBatch = errors.New("malformed batch of KV events")

var errType = errors.New("unexpected type")

// Decode decodes the payload of a message into a batch, replacing its contents. The batch refers to the
// payload. Events that cannot be decoded are counted; an error means that the whole batch cannot be decoded.
//
// A batch is an array that begins with the time and the events, or a map with ts and events. An event is an
// array of its type and its fields by position, or a map with the type under "type". The last fields of an
// array may be missing (vLLM up to 0.23). Unknown types and fields are skipped.
func Decode(payload []byte, b *Batch) error {
	b.reset()
	err := eachPart(payload, func(name string, p []byte) (err error) {
		switch name {
		case "ts":
			b.Time, err = readFloat(p)
		case "events":
			err = b.readEvents(p)
		}
		return err
	})
	if err != nil {
		b.reset()
		return fmt.Errorf("%w: %w", ErrBatch, err)
	}
	return nil
}

// eachPart calls f with each part of a batch, in either of its forms.
func eachPart(p []byte, f func(name string, value []byte) error) error {
	if msgp.NextType(p) == msgp.MapType {
		return eachMember(p, func(key, value []byte) error { return f(string(key), value) })
	}
	names := []string{"ts", "events"}
	return eachItem(p, func(i int, item []byte) error {
		if i < len(names) {
			return f(names[i], item)
		}
		return nil
	})
}

func (b *Batch) readEvents(p []byte) error {
	return eachItem(p, func(_ int, p []byte) error {
		e := Event{LoRAID: Absent, Group: Absent}
		err := b.readEvent(p, &e)
		switch {
		case err != nil || e.Kind == Stored && !e.isConsistent():
			b.Bad++
		case e.Kind != 0:
			b.Events = append(b.Events, e)
		}
		return nil
	})
}

// isConsistent reports whether the lengths of a stored event's parts match.
func (e *Event) isConsistent() bool {
	return e.BlockSize >= 0 && (len(e.Tokens) == 0 || len(e.Tokens) == e.BlockSize*len(e.Hashes)) &&
		(len(e.Extra) == 0 || len(e.Extra) == len(e.Hashes))
}

// fieldsOf returns the fields of an event in the order of their positions in arrays, after the type.
func fieldsOf(k Kind) []string {
	switch k {
	case Stored:
		return []string{
			"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
			"lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
		}
	case Removed:
		return []string{"block_hashes", "medium", "group_idx"}
	}
	return nil
}

func (b *Batch) readEvent(p []byte, e *Event) error {
	if msgp.NextType(p) == msgp.MapType {
		// vLLM writes the type first, but this is not guaranteed.
		if err := eachMember(p, func(key, p []byte) (err error) {
			if string(key) == "type" {
				e.Kind, err = readKind(p)
			}
			return err
		}); err != nil || e.Kind == 0 {
			return err
		}
		return eachMember(p, func(key, p []byte) error { return b.readField(key, p, e) })
	}
	var fields []string
	return eachItem(p, func(i int, p []byte) (err error) {
		switch {
		case i == 0:
			e.Kind, err = readKind(p)
			fields = fieldsOf(e.Kind)
		case i <= len(fields):
			err = b.readField([]byte(fields[i-1]), p, e)
		}
		return err
	})
}

func readKind(p []byte) (Kind, error) {
	name, err := readText(p)
	switch string(name) {
	case "BlockStored":
		return Stored, err
	case "BlockRemoved":
		return Removed, err
	case "AllBlocksCleared":
		return Cleared, err
	}
	return 0, err
}

func (b *Batch) readField(key, p []byte, e *Event) (err error) {
	if msgp.IsNil(p) {
		return nil
	}
	switch string(key) {
	case "block_hashes":
		e.Hashes, err = b.readHashes(p)
	case "parent_block_hash":
		e.Parent, err = readHash(p)
		e.HasParent = true
	case "token_ids":
		e.Tokens, err = b.readTokens(p)
	case "block_size":
		e.BlockSize, err = readSmall(p)
	case "lora_id":
		e.LoRAID, err = readInt(p)
	case "lora_name":
		e.LoRA, err = readText(p)
	case "medium":
		e.Medium, err = readText(p)
	case "extra_keys":
		e.Extra, err = b.readExtra(p)
	case "group_idx":
		e.Group, err = readSmall(p)
	case "kv_cache_spec_kind":
		e.Spec, err = readText(p)
	case "locality":
		var where []byte
		where, err = readText(p)
		e.Remote = string(where) == "REMOTE"
	}
	return err
}

// The parts of all events are appended to one slice of the batch per type. When such a slice grows, it moves;
// slices of it that were returned earlier stay valid.

func (b *Batch) readHashes(p []byte) ([]Hash, error) {
	from := len(b.hashes)
	err := eachItem(p, func(_ int, p []byte) error {
		h, err := readHash(p)
		b.hashes = append(b.hashes, h)
		return err
	})
	return b.hashes[from:len(b.hashes):len(b.hashes)], err
}

func (b *Batch) readTokens(p []byte) ([]uint32, error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return nil, fmt.Errorf("array: %w", err)
	}
	from := len(b.tokens)
	for range n {
		var t uint32
		if t, p, err = msgp.ReadUint32Bytes(p); err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
		b.tokens = append(b.tokens, t)
	}
	return b.tokens[from:len(b.tokens):len(b.tokens)], nil
}

func (b *Batch) readExtra(p []byte) ([][]byte, error) {
	from := len(b.extra)
	err := eachItem(p, func(_ int, p []byte) error {
		if msgp.IsNil(p) {
			p = nil
		}
		b.extra = append(b.extra, p)
		return nil
	})
	return b.extra[from:len(b.extra):len(b.extra)], err
}

func readHash(p []byte) (Hash, error) {
	switch msgp.NextType(p) {
	case msgp.IntType:
		i, _, err := msgp.ReadInt64Bytes(p)
		return Hash(i), wrap(err) //nolint:gosec // a negative number is as good a name as any
	case msgp.UintType:
		u, _, err := msgp.ReadUint64Bytes(p)
		return Hash(u), wrap(err)
	case msgp.BinType:
		digest, _, err := msgp.ReadBytesZC(p)
		if err != nil {
			return 0, wrap(err)
		}
		if len(digest) < 8 {
			return 0, fmt.Errorf("%w: a digest of %d bytes", errType, len(digest))
		}
		return Hash(binary.BigEndian.Uint64(digest[len(digest)-8:])), nil
	}
	return 0, errType
}

func readInt(p []byte) (int64, error) {
	i, _, err := msgp.ReadInt64Bytes(p)
	return i, wrap(err)
}

// readSmall reads a count or an index.
func readSmall(p []byte) (int, error) {
	i, _, err := msgp.ReadInt64Bytes(p)
	if err == nil && (i < 0 || i > math.MaxInt32) {
		return 0, fmt.Errorf("%w: %d", errType, i)
	}
	return int(i), wrap(err)
}

func readFloat(p []byte) (float64, error) {
	switch msgp.NextType(p) {
	case msgp.IntType, msgp.UintType:
		i, err := readInt(p)
		return float64(i), err
	}
	f, _, err := msgp.ReadFloat64Bytes(p)
	return f, wrap(err)
}

func readText(p []byte) ([]byte, error) {
	s, _, err := msgp.ReadStringZC(p)
	return s, wrap(err)
}

func wrap(err error) error {
	if err != nil {
		return fmt.Errorf("field: %w", err)
	}
	return nil
}

// Kind is the kind of an event.
type Kind uint8

// The kinds. Decode skips events of any other kind.
const (
	Stored  Kind = iota + 1 // blocks are in the cache
	Removed                 // blocks are no longer in it
	Cleared                 // the cache is empty
)

// Hash is an engine's name for a block, unique within that engine only. Engines publish 64-bit numbers, which
// may be negative, or digests. Of a digest only the last eight bytes count, as in vLLM when it publishes a
// digest as a number.
type Hash uint64

// Absent is the value of a number that an event omits.
const Absent = -1

// Event is one change of a cache. Its slices are valid until the batch is decoded into again or its payload
// is changed.
type Event struct {
	Kind   Kind
	Hashes []Hash // of Stored and Removed, in the order of the blocks

	// Fields of Stored:
	Parent    Hash // the predecessor of the first block, if HasParent
	HasParent bool
	Tokens    []uint32 // BlockSize for each hash; none for blocks in a lower tier
	BlockSize int
	LoRAID    int64  // Absent: none
	LoRA      []byte // name of the adapter; older engines send only the id
	// Extra has, for each block, the properties that it depends on in addition to its tokens, in MessagePack:
	// nil, or an array. It is empty if no block has any.
	Extra [][]byte
	Spec  []byte // the kind of attention, such as full_attention; often omitted

	Medium []byte // GPU, CPU, STORAGE and others; omitted by older engines
	Remote bool   // the block is on another machine
	Group  int    // the group of layers that has its own blocks; Absent if all layers share them
}

// Batch is one message of a publisher.
type Batch struct {
	Time   float64 // seconds since 1970, by the engine's clock
	Events []Event
	// Bad is the number of events that were skipped because they could not be decoded.
	Bad int

	hashes []Hash
	tokens []uint32
	extra  [][]byte
}

func (b *Batch) reset() {
	*b = Batch{Events: b.Events[:0], hashes: b.hashes[:0], tokens: b.tokens[:0], extra: b.extra[:0]}
}

var errShort = errors.New("truncated message")

// eachItem calls f with each item of an array, and returns the first error.
func eachItem(p []byte, f func(i int, item []byte) error) error {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return fmt.Errorf("array: %w", err)
	}
	for i := range n {
		rest, err := msgp.Skip(p)
		if err != nil {
			return err
		}
		if err := f(int(i), p[:len(p)-len(rest)]); err != nil {
			return err
		}
		p = rest
	}
	return nil
}

// eachMember calls f with each member of a map whose key is text, and returns the first error.
func eachMember(p []byte, f func(key, value []byte) error) error {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	for range n {
		value, err := msgp.Skip(p)
		if err != nil {
			return err
		}
		rest, err := msgp.Skip(value)
		if err != nil {
			return err
		}
		if msgp.NextType(p) == msgp.StrType {
			key, _, err := msgp.ReadStringZC(p)
			if err != nil {
				return fmt.Errorf("key: %w", err)
			}
			if err := f(key, value[:len(value)-len(rest)]); err != nil {
				return err
			}
		}
		p = rest
	}
	return nil
}
