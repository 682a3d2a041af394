package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
)

func control(name string) bool {
	switch name {
	case "kv_transfer_params", "disagg_spec", "bootstrap_host", "bootstrap_port", "bootstrap_room":
		return true
	}
	return false
}

// strip is what taking the client's control fields out means, on decoded values.
func strip(v any) {
	m, ok := v.(map[string]any)
	if !ok {
		return
	}
	for k, inner := range m {
		switch {
		case control(k):
			delete(m, k)
		case k == "sampling_params" || k == "extra_args" || k == "vllm_xargs":
			strip(inner)
		}
	}
}

func decode(t *testing.T, b []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %q", err, b)
	}
	return v
}

// FuzzEdit holds the splicing against decode, edit, encode by the standard
// library: whatever is accepted must mean the same afterwards.
func FuzzEdit(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"max_tokens":5}`, `{"kv_transfer_params":{"a":[1,2]},"max_tokens":1e3,"stream":true}`,
		`{"bootstrap_host":1,"a":2,"disagg_spec":3}`, `{"sampling_params":{"extra_args":{"kv_transfer_params":1}}}`,
		` {"a":"\u0000\ud800","max_tok\u0065ns":"7","max_tokens":8} `, `{"vllm_xargs":{},"vllm_xargs":{"disagg_spec":0,"x":0}}`,
		`{"stop":["a"],"stop":null,"n":2,"prompt":[[1],[2]]}`, `[1]`, `{"a":"\"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		sent := bytes.Clone(body)
		r, err := openai.ParseOther(body)
		if err != nil {
			var e *openai.Error
			if !errors.As(err, &e) {
				t.Fatalf("error of type %T", err)
			}
			return
		}
		if !json.Valid(body) {
			t.Fatalf("accepted what is not JSON: %q", body)
		}
		e := r.NewEdit()
		e.Set(openai.FieldMaxTokens, "1")
		e.Replace(openai.FieldMinTokens, "1")
		e.Delete(openai.FieldStop)
		e.Set(openai.FieldKVTransferParams, `{"k":9007199254740993}`)
		got, _ := decode(t, e.Body().Bytes()).(map[string]any)
		want, _ := decode(t, body).(map[string]any)
		strip(want)
		want["max_tokens"] = json.Number("1")
		if _, ok := want["min_tokens"]; ok {
			want["min_tokens"] = json.Number("1")
		}
		delete(want, "stop")
		want["kv_transfer_params"] = map[string]any{"k": json.Number("9007199254740993")}
		if !reflect.DeepEqual(got, want) && !lossy(body) {
			t.Fatalf("body %q\ngot  %v\nwant %v", body, got, want)
		}
		if !bytes.Equal(body, sent) {
			t.Fatal("the client's body was changed")
		}
	})
}

// lossy tells bodies in which the standard library's view of names differs
// from a byte-wise one: it maps lone surrogates to U+FFFD.
func lossy(body []byte) bool { return bytes.Contains(bytes.ToLower(body), []byte(`\ud`)) }

// FuzzParseAgrees holds the scanner against the standard library's validity.
func FuzzParseAgrees(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-0.5e+3,"\n",true,null,{}]}`, `{"a":[1,2 ,3,]}`, `{"a":[1,,2]}`, `{"a":[12, ]}`, `{"a":[01]}`, `{"a":1}x`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_, err := openai.ParseOther(body)
		trimmed := bytes.TrimLeft(body, " \t\r\n")
		object := json.Valid(body) && len(trimmed) > 0 && trimmed[0] == '{'
		if err == nil && !object {
			t.Fatalf("accepted %q", body)
		}
		if err != nil && object && !strings.Contains(err.Error(), "UTF-8") &&
			!strings.Contains(err.Error(), "deeply") && !strings.Contains(err.Error(), "more than 4096") {
			t.Fatalf("refused %q: %v", body, err)
		}
	})
}

// FuzzEvents cuts a stream at any boundary: the events found must be the same.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("data: a\n\ndata: b\r\n\r\n: c\n\ndata: [DONE]\n\n"), uint8(3))
	f.Add([]byte("\n\n\n\r\n\r\n\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		if step == 0 {
			step = 1
		}
		var buf, got []byte
		seen := 0
		for i := 0; i < len(stream); i += int(step) {
			buf = append(buf, stream[i:min(len(stream), i+int(step))]...)
			end := openai.EventEnd(buf, seen)
			for rest := buf[:end]; ; {
				event, tail, ok := openai.NextEvent(rest)
				if !ok {
					break
				}
				openai.Classify(event)
				openai.LooksLikeError(event)
				rest = tail
			}
			got = append(got, buf[:end]...)
			buf = append([]byte(nil), buf[end:]...)
			seen = len(buf)
			if _, _, ok := openai.NextEvent(buf); ok {
				t.Fatalf("stream %q in steps of %d: a whole event was held back in %q", stream, step, buf)
			}
		}
		// Surplus blank lines behind the last event may be held back.
		got = bytes.TrimRight(got, "\r\n")
		if want := bytes.TrimRight(stream[:openai.EventEnd(stream, 0)], "\r\n"); !bytes.Equal(got, want) {
			t.Fatalf("stream %q in steps of %d: got %q, want %q", stream, step, got, want)
		}
	})
}
