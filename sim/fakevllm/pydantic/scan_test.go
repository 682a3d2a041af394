package pydantic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"unicode/utf8"
)

func TestForEachMember(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in, out string // out "" for an error
	}{
		{"empty", ` { } `, "ok"},
		{"all kinds", `{"a":1,"b" : "x\"}{" , "c":[1,{"d":"]"}],"e":{"f":{}},"g":null,"h":true}`, `ok a=1 b="x\"}{" c=[1,{"d":"]"}] e={"f":{}} g=null h=true`},
		{"escaped key", `{"\u0061b":1}`, "ok ab=1"},
		{"duplicate", `{"a":1,"a":2}`, "ok a=1 a=2"},
		{"backslashes before a quote", `{"a":"\\","b":"\\\"","c":2}`, `ok a="\\" b="\\\"" c=2`},
		{"no object", `[1]`, ""},
		{"nothing", ``, ""},
		{"trailing comma", `{"a":1,}`, ""},
		{"missing colon", `{"a" 1}`, ""},
		{"missing comma", `{"a":1 "b":2}`, ""},
		{"extra data", `{"a":1}}`, ""},
		{"unterminated string", `{"a":"b}`, ""},
		{"unterminated object", `{"a":{"b":1}`, ""},
		{"bare key", `{a:1}`, ""},
		{"no value", `{"a":}`, ""},
		{"control character in key", "{\"a\nb\":1}", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := "ok"
			err := ForEachMember([]byte(tt.in), func(key string, raw []byte) error {
				got += fmt.Sprintf(" %s=%s", key, raw)
				return Validate(raw)
			})
			if (err != nil) != (tt.out == "") || err == nil && got != tt.out {
				t.Errorf("got %q, %v; expected %q", got, err, tt.out)
			}
		})
	}
}

func FuzzForEachMember(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,2,{"b":"\\\""}],"c":"\u00e9"}`, `{"a":01}`, `{"a":"\x"}`, `{"a":1,"a":nul}`, `{"a":[1 2]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if !utf8.Valid(in) {
			return
		}
		got := map[string]json.RawMessage{}
		err := ForEachMember(in, func(key string, raw []byte) error {
			got[key] = raw
			return Validate(raw)
		})
		var expected map[string]json.RawMessage
		ok := json.Unmarshal(in, &expected) == nil && expected != nil
		if (err == nil) != ok {
			t.Fatalf("%q: %v, encoding/json says %v", in, err, ok)
		}
		if !ok {
			return
		}
		if len(got) != len(expected) {
			t.Fatalf("%q: %v, not %v", in, got, expected)
		}
		for k, v := range expected {
			if !bytes.Equal(got[k], v) {
				t.Fatalf("%q: member %q is %s, not %s", in, k, got[k], v)
			}
		}
	})
}

func FuzzScanInts(f *testing.F) {
	for _, s := range []string{`[]`, `[1,2, 3 ]`, `[01]`, `[1,]`, `[-1]`, `[1.0]`, `[9999999999999999999]`, `[1`, "[ 1\n,2]", `[0]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		ids, ok := ScanInts(in, nil)
		if !ok {
			return
		}
		var expected []int
		if err := json.Unmarshal(in, &expected); err != nil {
			t.Fatalf("%q is taken, encoding/json says %v", in, err)
		}
		if fmt.Sprint(ids) != fmt.Sprint(expected) {
			t.Fatalf("%q: %v, not %v", in, ids, expected)
		}
	})
}

func TestScanIntsTakesTheUsualForms(t *testing.T) {
	t.Parallel()
	for _, s := range []string{`[]`, `[0]`, `[1,2,3]`, `[1, 2, 3]`, "[ 1 ,\n2 ]"} {
		if _, ok := ScanInts([]byte(s), nil); !ok {
			t.Errorf("%q is left to the slow path", s)
		}
	}
}
