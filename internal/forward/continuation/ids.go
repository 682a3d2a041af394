package continuation

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/forward/scratch"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

const (
	// maxIDs bounds one list of token ids.
	maxIDs = 1 << 20
	// countedIDs is the size from which lists count as memory of request bodies, in bytes.
	countedIDs = 4 << 10
)

// idList is a list of token ids. The zero value is empty and has no memory bound.
type idList struct {
	list     []uint32
	memory   *scratch.Bodies
	reserved int64 // bytes of list that are counted in memory
}

// addJSON appends the ids of a JSON list. It returns false if the value is not a list of
// ids, or if there is no memory for them; l is then unchanged.
func (l *idList) addJSON(list []byte) bool {
	if !l.grow(1 + bytes.Count(list, []byte{','})) {
		return false
	}
	ids, ok := jsonscan.AppendUints(l.list, list)
	if ok {
		l.list = ids
	}
	return ok
}

// grow ensures that n more ids fit. It returns false if there is no memory for them.
func (l *idList) grow(n int) bool {
	if len(l.list)+n > maxIDs {
		return false
	}
	list := slices.Grow(l.list, n)
	if size := 4 * int64(cap(list)); size >= countedIDs && size > l.reserved && l.memory != nil {
		if l.memory.Reserve(size-l.reserved) != nil {
			return false
		}
		l.reserved = size
	}
	l.list = list
	return true
}

// appendJSON appends the first n ids to out, with commas between them.
func (l *idList) appendJSON(out []byte, n int) []byte {
	for _, id := range l.list[:n] {
		if c := out[len(out)-1]; c != '[' {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(id), 10)
	}
	return out
}

// jsonIDs returns ids as a JSON list.
func jsonIDs(ids []uint32) []byte {
	l := idList{list: ids}
	return append(l.appendJSON([]byte{'['}, len(ids)), ']')
}

// release frees the memory of the list.
func (l *idList) release() {
	if l.reserved > 0 {
		l.memory.Free(l.reserved)
	}
	l.list, l.reserved = nil, 0
}
