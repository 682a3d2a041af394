package disk

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
)

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
		line, _ := json.Marshal(e) // texts, bytes and numbers have no error
		b = append(b, line...)
	}
	return append(b, "]}"...)
}

// LineSize returns the approximate size of an entry in the file, in bytes.
func LineSize(address string, value []byte) int {
	return 160 + len(address) + base64.StdEncoding.EncodedLen(len(value))
}
