package disk

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strconv"
)

// The file is written every few seconds while the membership changes, in the process that
// serves requests. Its lines are therefore encoded without reflection, which takes tens of
// milliseconds for ten thousand lines.

// File returns the whole of the file.
func (m *Image) File() []byte {
	size := 512 + m.Size
	const sum = 2 * sha256.Size
	b := append(make([]byte, 0, size), `{"sha256":"`...)
	at := len(b)
	b = append(b, make([]byte, sum)...) // filled in below
	b = append(b, `","state":`...)
	begin := len(b)
	b = m.appendState(b)
	digest := sha256.Sum256(b[begin:])
	hex.Encode(b[at:at+sum], digest[:])
	return append(b, "}\n"...)
}

// appendState writes what json.Marshal would make of the State.
func (m *Image) appendState(b []byte) []byte {
	head, _ := json.Marshal(State{Head: m.Head}) // texts and a present time have no error
	// Its entries are the last field, and null.
	b = append(append(b, head[:len(head)-len(`null}`)]...), '[')
	first := true
	for e := range m.Entries {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = e.appendLine(b)
	}
	return append(b, "]}"...)
}

// LineSize returns the approximate size of an entry in the file, in bytes.
func LineSize(address string, value []byte) int {
	return 160 + len(address) + base64.StdEncoding.EncodedLen(len(value))
}

// appendLine writes one Entry.
func (e *Entry) appendLine(b []byte) []byte {
	b = append(b, `{"key":`...)
	if plain(e.Key) {
		b = append(append(append(b, '"'), e.Key...), '"')
	} else {
		key, _ := json.Marshal(e.Key) // a string has no error
		b = append(b, key...)
	}
	if len(e.Value) > 0 {
		b = append(b, `,"value":"`...)
		b = append(base64.StdEncoding.AppendEncode(b, e.Value), '"')
	}
	b = strconv.AppendInt(append(b, `,"create":`...), e.Create, 10)
	b = strconv.AppendInt(append(b, `,"mod":`...), e.Mod, 10)
	b = strconv.AppendInt(append(b, `,"version":`...), e.Version, 10)
	if e.Lease != 0 {
		b = strconv.AppendInt(append(b, `,"lease":`...), e.Lease, 10)
	}
	if e.Absent != "" {
		b = append(append(append(b, `,"absent":"`...), e.Absent...), '"')
	}
	return append(b, '}')
}

// plain reports whether JSON quotes a text as it is.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}
