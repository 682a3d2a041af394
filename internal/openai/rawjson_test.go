package openai_test

import (
	"bytes"
	"encoding/json"
	"testing"
)

// rawMember is one member of a JSON object as encoding/json finds it: the bytes of the name and of the value,
// and the decoded name.
type rawMember struct {
	name       string
	key, value []byte
}

func (m rawMember) String() string { return string(m.key) + ":" + string(m.value) }

// rawMembers splits an object with the standard library, as a reference for our own scanner. ok is false for
// any other text.
func rawMembers(object []byte) (members []rawMember, ok bool) {
	if !json.Valid(object) {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(object))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, false
	}
	for d.More() {
		before := d.InputOffset()
		name, err := d.Token()
		if err != nil {
			return nil, false
		}
		m := rawMember{key: bytes.Trim(object[before:d.InputOffset()], " \t\r\n,")}
		m.name, _ = name.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, false
		}
		m.value = value
		members = append(members, m)
	}
	return members, true
}

// lastOf returns the value that counts for a name: as in vLLM, that of the last duplicate.
func lastOf(members []rawMember, name string) []byte {
	var value []byte
	for _, m := range members {
		if m.name == name {
			value = m.value
		}
	}
	return value
}

func kindOf(value []byte) byte {
	if len(value) == 0 {
		return 0
	}
	return value[0]
}

func TestRawMembers(t *testing.T) {
	t.Parallel()
	got, ok := rawMembers([]byte(` { "a\u0062" : [1, 2] ,"c":{"d":1e400},"ab":null } `))
	if !ok || len(got) != 3 || got[0].String() != `"a\u0062":[1, 2]` || got[1].String() != `"c":{"d":1e400}` || string(lastOf(got, "ab")) != "null" {
		t.Fatalf("%v, %q", ok, got)
	}
	for _, s := range []string{``, `[]`, `{"a":1`, `{} {}`, `null`} {
		if got, ok := rawMembers([]byte(s)); ok {
			t.Errorf("%s: %q", s, got)
		}
	}
}
