package kvevents

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
	Rank   int     // data-parallel rank; Absent if there is only one
	Events []Event
	// Bad is the number of events that were skipped because they could not be decoded.
	Bad int

	hashes []Hash
	tokens []uint32
	extra  [][]byte
}

func (b *Batch) reset() {
	*b = Batch{Rank: Absent, Events: b.Events[:0], hashes: b.hashes[:0], tokens: b.tokens[:0], extra: b.extra[:0]}
}
