package request_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// steeringFields are the fields by which a client could steer transfers between engines, as engines read
// them, each with a value.
var steeringFields = []string{
	`"kv_transfer_params":{"do_remote_prefill":true}`,
	`"kv_transfer_params":{}`,
	`"ec_transfer_params":{"consumer_zmq":"tcp://10.0.0.1:1"}`,
	`"ec_transfer_params":{"h":{"peer_host":"10.0.0.1","peer_port":1}}`,
	`"vllm_xargs":{"kv_transfer_params":"x"}`,
	`"vllm_xargs":{}`,
	`"sampling_params":{"extra_args":{"kv_transfer_params":{}}}`,
	`"sampling_params":{}`,
	`"extra_args":{"ec_transfer_params":{}}`,
	`"disagg_spec":{"receiver_host":"10.0.0.1"}`,
	`"bootstrap_host":"10.0.0.1"`,
	`"bootstrap_port":8998`,
	`"bootstrap_room":1`,
	`"bootstrap_pair_key":"k"`,
	`"remote_host":"10.0.0.1"`,
	`"remote_port":5600`,
	`"remote_hosts":["10.0.0.1"]`,
	`"metaserver":"http://10.0.0.1/"`,
	`"remote_bootstrap_addr":"http://10.0.0.1:8998"`,
	`"remote_prefiller":{"remote_host":"10.0.0.1"}`,
	`"remote_decoder":{"kv_request_id":"x"}`,
	`"remote_kv_source":{"remote_host":"10.0.0.1"}`,
	`"priority":-5`,
	`"data_parallel_rank":1`,
}

// asUTF16 encodes a body as UTF-16 without a byte order mark, which Python's JSON accepts.
func asUTF16(s string, order binary.AppendByteOrder) []byte {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = order.AppendUint16(b, u)
	}
	return b
}

// asUTF32 does the same for UTF-32.
func asUTF32(s string, order binary.AppendByteOrder) []byte {
	var b []byte
	for _, r := range s {
		b = order.AppendUint32(b, uint32(r))
	}
	return b
}

// disguises returns ways to spell a field in a body that is not JSON for the proxy, but in which Python finds
// the field.
func disguises(field string) map[string][]byte {
	nan := `{"x":NaN,` + field + `}`
	escaped := strings.Replace(field, "_", `\u005f`, 1)
	if escaped == field {
		escaped = `"\u00` + "70" + field[2:]
	}
	whole := `{"model":"m",` + field + `}`
	return map[string][]byte{
		"NaN before":            []byte(nan),
		"NaN behind":            []byte(`{` + field + `,"x":NaN}`),
		"Infinity in a list":    []byte(`{"x":[-Infinity],` + field + `}`),
		"cut":                   []byte(`{` + field),
		"two objects":           []byte(`{"a":1}{` + field + `}`),
		"escaped":               []byte(`{"x":NaN,` + escaped + `}`),
		"in a text":             []byte(`{"x":NaN,"prompt":` + strings.ReplaceAll(quoted(field), `\u`, `u`) + `}`),
		"UTF-16, little":        asUTF16(whole, binary.LittleEndian),
		"UTF-16, big":           asUTF16(whole, binary.BigEndian),
		"UTF-16 with a mark":    append([]byte{0xff, 0xfe}, asUTF16(whole, binary.LittleEndian)...),
		"UTF-32, little":        asUTF32(whole, binary.LittleEndian),
		"UTF-32, big":           asUTF32(whole, binary.BigEndian),
		"UTF-8 with a mark":     []byte("\ufeff" + whole),
		"UTF-16 with NaN":       asUTF16(nan, binary.LittleEndian),
		"not UTF-8 beside":      []byte("{\"x\":\"\xff\"," + field + "}"),
		"of a value that fails": []byte(`{"max_tokens":0,` + field + `}`),
	}
}

func quoted(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func TestEngineQuery_NoSteeringFields(t *testing.T) {
	t.Parallel()
	for _, field := range steeringFields {
		for how, body := range disguises(field) {
			assert.False(t, request.MayAsk(body), "%s, %s: an engine would be asked about %q", field, how, body)
		}
	}
}

func TestEngineQuery_PlainMistakes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body string
		want       bool
	}{
		{"nothing", ``, true},
		{"broken", `{"model":`, true},
		{"NaN", `{"prompt":"hi","temperature":NaN}`, true},
		{"other escapes", `{"prompt":"a\n\"b\"\\c","max_tokens":0}`, true},
		{"letters that are not ASCII", `{"prompt":"äöü人😀","max_tokens":0}`, true},
		{"an escaped letter", `{"prompt":"\u00e4","max_tokens":0}`, false},
		{"a response that the engine computes without a connection", `{"input":"hi","background":true,"temperature":NaN}`, false},
		{"a zero", "{\"prompt\":\"\x00\"", false},
		{"not UTF-8", "{\"prompt\":\"\xff\"", false},
		{"large", `{"prompt":"` + strings.Repeat("x", 64<<10), false},
	} {
		assert.Equal(t, tc.want, request.MayAsk([]byte(tc.body)), tc.name)
	}
}

// FuzzMayAsk checks that a body which an engine may be queried about has none of the names, however Python
// decodes it.
func FuzzMayAsk(f *testing.F) {
	for _, field := range steeringFields {
		for _, body := range disguises(field) {
			f.Add(body)
		}
	}
	f.Add([]byte(`{"prompt":"hi","temperature":NaN}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if !request.MayAsk(body) {
			return
		}
		for _, text := range decodings(body) {
			for _, field := range steeringFields {
				name := field[1 : 1+strings.IndexByte(field[1:], '"')]
				require.NotContains(t, text, name,
					"an engine would be asked about %q, which holds %s", body, name)
			}
		}
	})
}

// decodings returns the texts that Python's JSON may find in a body: its first bytes decide among UTF-8,
// UTF-16 and UTF-32, and it reads escapes in strings. This function reads all \u, even outside strings.
func decodings(body []byte) []string {
	var texts []string
	if utf8.Valid(body) {
		texts = append(texts, string(body))
	}
	// A body that Python takes for UTF-16 or UTF-32 has a zero in the first four bytes, or a byte order mark.
	if bytes.IndexByte(body[:min(4, len(body))], 0) >= 0 || bytes.HasPrefix(body, []byte{0xff, 0xfe}) || bytes.HasPrefix(body, []byte{0xfe, 0xff}) {
		for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
			var units []uint16
			var runes []rune
			for i := 0; i+2 <= len(body); i += 2 {
				units = append(units, order.Uint16(body[i:]))
			}
			for i := 0; i+4 <= len(body); i += 4 {
				runes = append(runes, rune(order.Uint32(body[i:])))
			}
			texts = append(texts, string(utf16.Decode(units)), string(runes))
		}
	}
	for i := range texts {
		texts[i] = unescaped(texts[i])
	}
	return texts
}

func unescaped(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+6 <= len(s) && s[i+1] == 'u' {
			var r struct{ S string }
			if json.Unmarshal([]byte(`{"S":"`+s[i:i+6]+`"}`), &r) == nil {
				b.WriteString(r.S)
				i += 5
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
