package fakevllm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

func TestAppendJSONString(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "plain", `"\`, "\x00\x1f\b\f\n\r\t", "é🙂\u2028<>&", "bad\xff\xc3", strings.Repeat("a\"", 50)} {
		var back string
		out := appendJSONString(nil, s)
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%q: %s: %v", s, out, err)
		}
		if expected := strings.ToValidUTF8(s, "\ufffd"); utf8.ValidString(s) && back != expected {
			t.Errorf("%q came back as %q", s, back)
		}
		if !utf8.Valid(out) {
			t.Errorf("%q gives invalid UTF-8", s)
		}
	}
	for id := range VocabSize {
		var back string
		out := append(appendWordJSON([]byte{'"'}, id), '"')
		if err := json.Unmarshal(out, &back); err != nil || back != string(AppendWord(nil, id)) {
			t.Fatalf("word %d: %s: %v", id, out, err)
		}
	}
}

// Whoever has seen a number finds as many remarks.
func TestRemarksAreThereWhenTheyAreCounted(t *testing.T) {
	t.Parallel()
	s := &Server{}
	const times = 5000
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := range times {
			s.noteAbort(strconv.Itoa(i))
			s.violation("%d", i)
		}
	})
	for counted := int64(0); counted < times; {
		counted = s.count.aborted.Load()
		if n := int64(len(s.Aborted())); n < counted {
			t.Fatalf("%d aborts are counted, and %d are there", counted, n)
		}
		if v := s.count.violations.Load(); int64(len(s.Violations())) < v {
			t.Fatalf("%d violations are counted, and not all are there", v)
		}
	}
	writing.Wait()
}

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
			err := forEachMember([]byte(tt.in), func(key string, raw []byte) error {
				got += fmt.Sprintf(" %s=%s", key, raw)
				return validate(raw)
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
		err := forEachMember(in, func(key string, raw []byte) error {
			got[key] = raw
			return validate(raw)
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
		ids, ok := scanInts(in, nil)
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
		if _, ok := scanInts([]byte(s), nil); !ok {
			t.Errorf("%q is left to the slow path", s)
		}
	}
}

// FuzzParseParams: no body makes it panic, and what it takes is JSON.
func FuzzParseParams(f *testing.F) {
	for _, s := range []string{
		`{"prompt":"hi","max_tokens":5}`, `{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`,
		`{"prompt":[[1,2],[3]],"n":2,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"messages":[{"role":"user","content":null,"tool_calls":[]}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"}`,
		`{"prompt":["a","b"],"stop":["x"],"kv_transfer_params":{}}`, `{"prompt":"x","response_format":{"type":"json_object"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, chat := range []bool{false, true} {
			p, err := parseParams(in, chat)
			if err != nil {
				if e := asAPIError(err); e.status < 400 || e.status > 499 || !json.Valid(e.append(nil, true)) {
					t.Fatalf("%q: %d %s", in, e.status, e.message)
				}
				continue
			}
			if !json.Valid(in) {
				t.Fatalf("%q is taken and is no JSON", in)
			}
			parseKV(p.kv, NIXL)
			if chat {
				_ = p.render()
			}
		}
	})
}

func TestHandoverIsJSON(t *testing.T) {
	t.Parallel()
	for range 100 {
		token := newToken()
		b := appendHandover(nil, NIXL, `e"1`, "chatcmpl-R\\", "::1", 5600, rand.IntN(5000), token)
		if !json.Valid(b) {
			t.Fatalf("%s", b)
		}
		k := parseKV(b, NIXL)
		if k.form != kvLoad || k.claim.token != token || k.claim.engineID != `e"1` || k.host != "::1" || k.port != 5600 {
			t.Fatalf("%s is read as %+v", b, k)
		}
		var f float64
		if err := json.Unmarshal([]byte(token), &f); err != nil {
			t.Fatal(err)
		}
		if again, _ := json.Marshal(f); string(again) == token {
			t.Fatalf("the token %s survives a float64", token)
		}
	}
}

func TestParseKV(t *testing.T) {
	t.Parallel()
	const produce = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	load := string(appendHandover(nil, NIXL, "e", "r", "h", 1, 5, newToken()))
	for _, tt := range []struct {
		name, in string
		form     kvForm
	}{
		{"absent", "", kvAbsent},
		{"empty", "{}", kvAbsent},
		{"prefill form", produce, kvProduce},
		{"prefill form without a null", strings.Replace(produce, `,"remote_port":null`, "", 1), kvBad},
		{"prefill form with another key", strings.Replace(produce, `remote_port`, "remote_ip", 1), kvBad},
		{"prefill form with a value", strings.Replace(produce, `"remote_port":null`, `"remote_port":1`, 1), kvBad},
		{"prefill form with more", strings.Replace(produce, `{`, `{"x":null,`, 1), kvBad},
		{"both", strings.Replace(produce, `"do_remote_prefill":false`, `"do_remote_prefill":true`, 1), kvBad},
		{"neither", strings.Replace(produce, `"do_remote_decode":true`, `"do_remote_decode":false`, 1), kvBad},
		{"a boolean is a string", strings.Replace(produce, `"do_remote_decode":true`, `"do_remote_decode":"true"`, 1), kvBad},
		{"a boolean is missing", strings.Replace(produce, `"do_remote_prefill":false,`, ``, 1), kvBad},
		{"decode form", load, kvLoad},
		{"decode form with a field of a newer version", strings.Replace(load, `{`, `{"new":[1],`, 1), kvLoad},
		{"decode form without blocks", strings.Replace(load, `remote_block_ids`, "other", 1), kvBad},
		{"decode form with null blocks", `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":null,"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1}`, kvBad},
		{"decode form without request id", strings.Replace(load, `remote_request_id`, "other", 1), kvBad},
		{"decode form with port as text", strings.Replace(load, `"remote_port":1`, `"remote_port":"1"`, 1), kvBad},
		{"decode form with port 0", strings.Replace(load, `"remote_port":1`, `"remote_port":0`, 1), kvBad},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var raw []byte
			if tt.in != "" {
				raw = []byte(tt.in)
			}
			if got := parseKV(raw, NIXL); got.form != tt.form {
				t.Errorf("%s is form %d (%s), not %d", tt.in, got.form, got.why, tt.form)
			}
		})
	}
	spoiled := strings.Replace(load, "1.0", "1", 1)
	if got := parseKV([]byte(spoiled), NIXL); got.form != kvLoad || got.claim.token != "" {
		t.Errorf("re-encoded fields are not noticed: %+v", got)
	}
}

// Blocks that were freed are not given away, whether anybody has looked meanwhile
// or not, and an id that is over is not used again.
func TestTransferAfterItsTime(t *testing.T) {
	t.Parallel()
	reused := 0
	tr := newTransfers(time.Millisecond, nil, func(string) { reused++ })
	if !tr.begin("x") {
		t.Error("a new id is not taken")
	}
	tr.finish("x", 1, time.Now().Add(-time.Hour))
	if prompt, err := tr.pull("x"); !errors.Is(err, errNoPrefill) {
		t.Errorf("got %d, %v", prompt, err)
	}
	if waiting, expired := tr.counts(time.Now()); waiting != 0 || expired != 1 || reused != 0 {
		t.Errorf("%d wait, %d have expired, %d are reused", waiting, expired, reused)
	}
	if tr.begin("x") {
		t.Error("an id that is over is taken again")
	}
	tr.drop("y")
	if len(tr.open) > 0 {
		t.Errorf("%d are kept", len(tr.open))
	}
}
