package continuation

// channel is a part of a message that a client reads as one text.
type channel uint8

const (
	content   channel = iota // of a chat, or the text of a completion
	reasoning                // of a chat
	toolCalls                // of a chat
)

// name returns the name of a text in a delta.
func (c channel) name() string {
	if c == reasoning {
		return "reasoning"
	}
	return "content"
}

// delivered is the part of a message that a client has.
type delivered struct {
	texts [toolCalls]text // by channel
	calls []text          // the arguments of each tool call

	logprobs int // number of tokens whose logprobs it has
}

const (
	hashOffset = 14695981039346656037 // FNV-1a, 64 bits
	hashPrime  = 1099511628211
)

// text represents a text by its length and a hash.
type text struct {
	n    int // bytes
	hash uint64
	lead byte // its first byte
}

func (t *text) add(b []byte) {
	if t.n == 0 {
		t.hash = hashOffset
		if len(b) > 0 {
			t.lead = b[0]
		}
	}
	h := t.hash
	for _, c := range b {
		h = (h ^ uint64(c)) * hashPrime
	}
	t.hash, t.n = h, t.n+len(b)
}

// equals reports whether s is the text.
func (t *text) equals(s string) bool {
	if len(s) != t.n {
		return false
	}
	var other text
	other.add([]byte(s))
	return other.hash == t.hash || t.n == 0
}
