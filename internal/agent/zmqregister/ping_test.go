package zmqregister_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/internal/agent/zmqregister"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func pack(t testing.TB, v any) []byte {
	t.Helper()
	b, err := msgp.AppendIntf(nil, v)
	require.NoError(t, err)
	return b
}

func newer(change map[string]any) map[string]any {
	m := map[string]any{
		"type": "P", "http_address": "10.0.0.1:8100", "zmq_address": "host:10.0.0.1,handshake:6301,notify:61005",
		"dp_size": 1, "tp_size": 8, "transfer_mode": "WRITE",
	}
	maps.Copy(m, change)
	return m
}

func older(change map[string]any) map[string]any {
	m := map[string]any{
		"type": "register", "role": "P", "index": "3", "request_address": "http://10.0.0.1:8100/v1/completions",
		"handshake_port": 6301, "notify_port": 61005, "dp_size": 1, "tp_size": 8, "transfer_mode": "WRITE",
	}
	maps.Copy(m, change)
	return m
}

func TestParsePing(t *testing.T) {
	t.Parallel()
	want := zmqregister.Ping{
		Key: instance.Key{Role: instance.Prefill, Address: "10.0.0.1:8100"}, Mode: "WRITE", DPSize: 1, TPSize: 8,
		ZMQ: connector.ZMQAddress{Host: "10.0.0.1", Handshake: 6301, Notify: 61005},
	}
	v6 := want
	v6.Key = instance.Key{Role: instance.Decode, Address: "[fd00::2]:8100"}
	v6.ZMQ.Host = "fd00::2"
	for name, tc := range map[string]struct {
		message map[string]any
		want    zmqregister.Ping
	}{
		"newer":      {newer(nil), want},
		"older":      {older(nil), want},
		"more":       {newer(map[string]any{"later": []any{1, nil, map[string]any{"a": 1.5}}}), want},
		"texts":      {older(map[string]any{"handshake_port": "6301", "notify_port": "61005", "tp_size": "8"}), want},
		"newer IPv6": {newer(map[string]any{"type": "D", "http_address": "fd00::2:8100", "zmq_address": "host:fd00::2,handshake:6301,notify:61005"}), v6},
		"older IPv6": {older(map[string]any{"role": "D", "request_address": "http://[fd00::2]:8100/v1/completions"}), v6},
	} {
		got, err := zmqregister.ParsePing(pack(t, tc.message))
		assert.True(t, err == nil && got == tc.want, "%s: %+v, %v", name, got, err)
	}
	_, err := zmqregister.ParsePing(pack(t, map[string]any{"type": "HELLO"}))
	assert.ErrorIs(t, err, zmqregister.ErrHello, "HELLO")
}

func TestBadPings(t *testing.T) {
	t.Parallel()
	for name, b := range map[string][]byte{
		"nothing": {}, "JSON": []byte(`{"type":"P"}`), "a list": pack(t, []any{1}), "a huge map": {0xdf, 0xff, 0xff, 0xff, 0xff},
		"cut short": pack(t, newer(nil))[:40], "something behind": append(pack(t, newer(nil)), 0xc0),
		"deep":                 append(append([]byte{0x81, 0xa1, 'x'}, []byte(strings.Repeat("\x91", 7000))...), 0xc0),
		"another type":         pack(t, newer(map[string]any{"type": "Q"})),
		"another role":         pack(t, older(map[string]any{"role": "X"})),
		"no mode":              pack(t, newer(map[string]any{"transfer_mode": "PUSH"})),
		"no size":              pack(t, newer(map[string]any{"tp_size": 0})),
		"too large":            pack(t, newer(map[string]any{"dp_size": 1 << 40})),
		"no address":           pack(t, newer(map[string]any{"http_address": nil})),
		"a wildcard":           pack(t, newer(map[string]any{"http_address": "0.0.0.0:8100"})),
		"no ports":             pack(t, newer(map[string]any{"zmq_address": "host:10.0.0.1"})),
		"an address in the id": pack(t, newer(map[string]any{"zmq_address": "host:a___decode_addr_host:b,handshake:1,notify:2"})),
		"https":                pack(t, older(map[string]any{"request_address": "https://10.0.0.1:8100/v1/completions"})),
		"a password":           pack(t, older(map[string]any{"request_address": "http://a:b@10.0.0.1:8100/v1/completions"})),
	} {
		p, err := zmqregister.ParsePing(b)
		assert.ErrorIs(t, err, zmqregister.ErrPing, "%s: %+v", name, p)
	}
}

// FuzzPing: an accepted ping describes an instance that can be registered; no ping ends the bridge.
func FuzzPing(f *testing.F) {
	f.Add(pack(f, newer(nil)))
	f.Add(pack(f, older(nil)))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := zmqregister.ParsePing(b)
		if err != nil {
			return
		}
		if a, err := instance.ParseAddress(p.Key.Address); err != nil || a != p.Key.Address {
			t.Fatalf("address %q: %q, %v", p.Key.Address, a, err)
		}
		if z, err := connector.ParseZMQAddress(p.ZMQ.String()); err != nil || z != p.ZMQ {
			t.Fatalf("zmq address %q: %v", p.ZMQ, err)
		}
		require.True(t, p.DPSize >= 1 && p.TPSize >= 1 && (p.Mode == "READ" || p.Mode == "WRITE"), "%+v", p)
	})
}
