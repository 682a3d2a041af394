package kvevents

// Kind is what an event says.
type Kind uint8

// The kinds. Others are left out when a batch is read.
const (
	Stored  Kind = iota + 1 // blocks are in the cache
	Removed                 // blocks are no longer in it
	Cleared                 // nothing is in it any more
)

// Hash is an engine's name for a block. Engines publish 64-bit numbers, which may be
// negative, or digests, of which the last eight bytes count: that is what vLLM makes
// of a digest when it publishes numbers. It means something within one engine only.
type Hash uint64

// Unsaid is the value of numbers that an event does not carry.
const Unsaid = -1

// Event is one change of a cache. Slices are good until the batch is read into again
// or its payload is changed.
type Event struct {
	Kind   Kind
	Hashes []Hash // of Stored and Removed, in the order of the blocks

	// Of Stored:
	Parent    Hash // what the first block hangs on, if HasParent
	HasParent bool
	Tokens    []uint32 // BlockSize for each hash; none where a lower tier stores
	BlockSize int
	LoRAID    int64  // Unsaid: none
	LoRA      []byte // the adapter's name; older engines send the id only
	// Extra holds, for each block, what it depends on besides its tokens, in
	// MessagePack: nil, or an array. There is none for all blocks where it is empty.
	Extra [][]byte
	Spec  []byte // the kind of attention, full_attention for instance; often unsaid

	Medium []byte // GPU, CPU, STORAGE and others; unsaid by older engines
	Remote bool   // the block is on another machine
	Group  int    // of layers that have their own blocks; Unsaid where all share them
}

// Batch is one message of a publisher.
type Batch struct {
	Time   float64 // seconds since 1970, by the engine's clock
	Rank   int     // data-parallel; Unsaid where there is one
	Events []Event
	// Bad counts events that could not be read and were left out.
	Bad int

	hashes []Hash
	tokens []uint32
	extra  [][]byte
}

func (b *Batch) reset() {
	b.Time, b.Rank, b.Bad = 0, Unsaid, 0
	b.Events = b.Events[:0]
	b.hashes, b.tokens, b.extra = b.hashes[:0], b.tokens[:0], b.extra[:0]
}
