package watch

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"strconv"
)

// The file is written every few seconds while the membership changes, in the same
// process that serves requests. So its lines are put together by hand: through
// reflection ten thousand of them take tens of milliseconds.

// file gives the whole of the file.
func (m *image) file() ([]byte, error) {
	size := 512
	for _, e := range m.order {
		size += 160 + len(e.Name.Address) + base64.StdEncoding.EncodedLen(len(e.value))
	}
	const sum = 2 * sha256.Size
	b := append(make([]byte, 0, size), `{"sha256":"`...)
	at := len(b)
	b = append(b, make([]byte, sum)...) // filled in below
	b = append(b, `","state":`...)
	begin := len(b)
	b, err := m.appendState(b)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(b[begin:])
	hex.Encode(b[at:at+sum], digest[:])
	return append(b, "}\n"...), nil
}

// appendState writes what json.Marshal would make of the diskState.
func (m *image) appendState(b []byte) ([]byte, error) {
	head, err := json.Marshal(m.head)
	if err != nil {
		return nil, err
	}
	// Its entries are the last field, and null.
	b = append(append(b, head[:len(head)-len(`null}`)]...), '[')
	first := true
	for _, e := range m.order {
		if !e.saved() {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		if b, err = e.appendLine(b, m.absent[e]); err != nil {
			return nil, err
		}
	}
	return append(b, "]}"...), nil
}

// saved tells that the disk holds such entries. A pending add is etcd's alone, and
// of what cannot be read there is nothing to keep.
func (e *entry) saved() bool { return e.good && e.Kind != schema.KindPending }

// appendLine writes one diskEntry.
func (e *entry) appendLine(b []byte, absent string) ([]byte, error) {
	b = append(b, `{"key":`...)
	if plain(e.Name.Address) {
		b = append(append(append(b, '"'), e.Path()...), '"')
	} else {
		key, err := json.Marshal(e.Path())
		if err != nil {
			return nil, err
		}
		b = append(b, key...)
	}
	if len(e.value) > 0 {
		b = append(b, `,"value":"`...)
		b = append(base64.StdEncoding.AppendEncode(b, e.value), '"')
	}
	b = strconv.AppendInt(append(b, `,"create":`...), e.create, 10)
	b = strconv.AppendInt(append(b, `,"mod":`...), e.mod, 10)
	b = strconv.AppendInt(append(b, `,"version":`...), e.version, 10)
	if e.leased != 0 {
		b = strconv.AppendInt(append(b, `,"lease":`...), e.leased, 10)
	}
	if absent != "" {
		b = append(append(append(b, `,"absent":"`...), absent...), '"')
	}
	return append(b, '}'), nil
}

// plain tells that JSON quotes a text as it is.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}
