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
// A batch is the array [time, events, rank], in which the rank may be missing, or a map of ts, events and
// data_parallel_rank. An event is an array of its type and its fields by position, or a map with the type
// under "type". The last fields of an array may be missing (vLLM up to 0.23). Unknown types and fields are
// skipped.
func Decode(payload []byte, b *Batch) error {
	b.reset()
	err := eachPart(payload, func(name string, p []byte) (err error) {
		switch name {
		case "ts":
			b.Time, err = readFloat(p)
		case "events":
			err = b.readEvents(p)
		case "data_parallel_rank":
			b.Rank, err = readSmall(p)
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
	names := []string{"ts", "events", "data_parallel_rank"}
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

// readSmall reads a count or an index; null is Absent.
func readSmall(p []byte) (int, error) {
	if msgp.IsNil(p) {
		return Absent, nil
	}
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
