package continuation

import (
	"bytes"
	"encoding/binary"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/forward/scratch"
)

const (
	// maxIDs bounds the memory of one list of token ids, in bytes: more than a million tokens.
	maxIDs = 4 << 20
	// firstIDs is the size of the first buffer, in bytes.
	firstIDs = 256
	// maxGrowth bounds what a buffer grows by at once, in bytes.
	maxGrowth = 16 << 10
	// countedIDs is the size from which buffers count as memory of request bodies.
	countedIDs = 4 << 10
)

// idList is a compact list of token ids: two or three bytes for each of most vocabularies. The
// zero value is empty and has no memory bound.
type idList struct {
	b        []byte // varints
	n        int    // number of ids
	memory   *scratch.Bodies
	reserved int64 // bytes of b that are counted in memory
}

// addJSON appends the ids of a JSON list. It reports false if the value is no such list, or if
// there is no memory for it; the list is then unchanged.
func (l *idList) addJSON(list []byte) bool {
	if len(list) < 2 || list[0] != '[' || !l.grow(min(len(list), 3*(1+bytes.Count(list, []byte{','})))) {
		return false
	}
	b, n := l.b, l.n
	in, v := false, uint64(0)
	for _, c := range list[1:] {
		switch {
		case c >= '0' && c <= '9':
			if v = v*10 + uint64(c-'0'); v > 1<<32-1 {
				return false
			}
			in = true
		case (c == ',' || c == ']') && in:
			b, n = binary.AppendUvarint(b, v), n+1
			in, v = false, 0
		case c == ' ' || c == ']':
		default:
			return false
		}
	}
	l.b, l.n = b, n
	return true
}

// grow makes room for n more bytes. An id needs no more than it has decimal digits, nor than three
// if it is below two million; others need a little memory that is not counted.
func (l *idList) grow(n int) bool {
	need := len(l.b) + n
	if need <= cap(l.b) {
		return true
	}
	size := max(firstIDs, min(2*cap(l.b), cap(l.b)+maxGrowth), need)
	if size > maxIDs {
		if size = maxIDs; need > maxIDs {
			return false
		}
	}
	reserved := int64(0)
	if size >= countedIDs && l.memory != nil {
		if l.memory.Reserve(int64(size)) != nil {
			return false
		}
		reserved = int64(size)
	}
	b := make([]byte, len(l.b), size)
	copy(b, l.b)
	l.uncount()
	l.b, l.reserved = b, reserved
	return true
}

// cut shortens the list to its first n ids.
func (l *idList) cut(n int) {
	l.b, l.n = l.b[:l.end(n)], n
}

// end returns the length of the first n ids, in bytes. n is not larger than l.n.
func (l *idList) end(n int) int {
	at := len(l.b)
	for i := l.n; i > n; i-- {
		for at--; at > 0 && l.b[at-1]&0x80 != 0; at-- {
		}
	}
	return at
}

// appendJSON appends the first n ids to out, with commas between them.
func (l *idList) appendJSON(out []byte, n int) []byte {
	for rest := l.b[:l.end(n)]; len(rest) > 0; {
		v, size := binary.Uvarint(rest)
		rest = rest[size:]
		if c := out[len(out)-1]; c != '[' {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, v, 10)
	}
	return out
}

func (l *idList) uncount() {
	if l.reserved > 0 {
		l.memory.Free(l.reserved)
		l.reserved = 0
	}
}

// release frees the memory of the list.
func (l *idList) release() {
	l.uncount()
	l.b, l.n = nil, 0
}
