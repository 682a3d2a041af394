package fakevllm_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// moriioPost sends a completion with an id and kv_transfer_params.
func moriioPost(t *testing.T, s *fakevllm.Server, id, params string) (status int, body string) {
	t.Helper()
	return try(t, s, id, `{"model":"fake-model","prompt":"a b c","max_tokens":1,"ignore_eos":true,"kv_transfer_params":`+params+`}`)
}

// TestMoRIIOKeys: missing params that crash a real engine crash this one (moriio_common.py, add_new_req).
func TestMoRIIOKeys(t *testing.T) {
	t.Parallel()
	addr := `"remote_host":"127.0.0.1","remote_handshake_port":1,"remote_notify_port":2`
	for name, tc := range map[string]struct {
		mode   fakevllm.Mode
		params string
		dies   bool
	}{
		"whole":               {fakevllm.MoRIIOWrite, `{"do_remote_decode":true,"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"t",` + addr + `}`, false},
		"no engine id":        {fakevllm.MoRIIOWrite, `{"do_remote_decode":true,"remote_block_ids":null,"transfer_id":"t",` + addr + `}`, true},
		"no block ids":        {fakevllm.MoRIIOWrite, `{"do_remote_decode":true,"remote_engine_id":null,"transfer_id":"t",` + addr + `}`, true},
		"no address":          {fakevllm.MoRIIOWrite, `{"do_remote_decode":true,"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"t"}`, true},
		"READ, no address":    {fakevllm.MoRIIORead, `{"do_remote_decode":true,"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"t"}`, false},
		"READ, no transferID": {fakevllm.MoRIIORead, `{"do_remote_decode":true,"remote_engine_id":null,"remote_block_ids":null}`, true},
	} {
		p := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RolePrefill, Mode: tc.mode})
		status, body := moriioPost(t, p, "r", tc.params)
		dead := false
		select {
		case <-p.Died():
			dead = true
		default:
		}
		if dead != tc.dies || !dead && (status != http.StatusOK || !strings.Contains(body, `"transfer_id":"t"`)) {
			t.Errorf("%s: %d, dead %v: %s", name, status, dead, body)
		}
	}
}

// TestMoRIIOPartners: a prefill with the address or the TP size of another decode, and a
// consumer in READ mode without transfer params.
func TestMoRIIOPartners(t *testing.T) {
	t.Parallel()
	nonce := strings.Repeat("0", 32)
	for name, tc := range map[string]struct {
		decode string // address in prefill's request id; "" is the correct one
		tp     int    // TP size of decode in the params of prefill
		want   func(c fakevllm.Counters) bool
	}{
		"right":         {"", 1, func(c fakevllm.Counters) bool { return c.TransfersLoaded == 1 && c.WrongKV == 0 }},
		"another size":  {"", 8, func(c fakevllm.Counters) bool { return c.WrongKV == 1 }},
		"another place": {"host:127.0.0.1,handshake:1,notify:2", 1, func(c fakevllm.Counters) bool { return c.TransfersLoaded == 0 && c.TransfersRefused == 1 }},
	} {
		o := fakevllm.Options{Mode: fakevllm.MoRIIOWrite}
		if tc.decode != "" { // the transfer times out
			o.TransferTimeout = time.Second
		}
		o.Role = fakevllm.RolePrefill
		p := fakevllm.StartTest(t, o)
		o.Role = fakevllm.RoleDecode
		d := fakevllm.StartTest(t, o)
		to := tc.decode
		if to == "" {
			to = d.ZMQAddress()
		}
		id := func(decode string) string {
			return "___prefill_addr_" + p.ZMQAddress() + "___decode_addr_" + decode + "_" + nonce
		}
		common := `"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"tx"`
		moriioPost(t, p, id(to), fmt.Sprintf(`{"do_remote_decode":true,"remote_tp_size":%d,%s}`, tc.tp, common))
		moriioPost(t, d, id(d.ZMQAddress()), `{"do_remote_prefill":true,"remote_tp_size":1,`+common+`}`)
		c := d.Counters()
		assert.True(t, tc.want(c), "%s: %+v", name, c)
	}
	d := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RoleDecode, Mode: fakevllm.MoRIIORead})
	if moriioPost(t, d, "r", "null"); d.Counters().WrongKV != 1 {
		t.Errorf("READ without transfer params: %+v", d.Counters())
	}
}

// Since 0.21, a decode engine in READ mode that refuses a request makes prefill free the blocks. The
// next request with these params then reads wrong blocks.
func TestMoRIIORefusalFrees(t *testing.T) {
	t.Parallel()
	for version, wrong := range map[string]int64{"0.20.2": 0, "0.32.0": 1} {
		o := fakevllm.Options{Mode: fakevllm.MoRIIORead, Version: version, Role: fakevllm.RolePrefill}
		p := fakevllm.StartTest(t, o)
		o.Role = fakevllm.RoleDecode
		d := fakevllm.StartTest(t, o)
		const ask = `"prompt":"a b c"`
		kv := decode(t, post(t, client(t), p.URL()+"/v1/completions", "R", `{`+ask+`,"max_tokens":1,"ignore_eos":true,"kv_transfer_params":{"do_remote_decode":true,"transfer_id":"t"}}`)).KV
		if r := post(t, client(t), d.URL()+"/v1/completions", "R", `{`+ask+`,"temperature":9,"kv_transfer_params":`+string(kv)+`}`); r.status != http.StatusBadRequest {
			t.Fatalf("%d %s", r.status, r.body)
		}
		for read := range int64(2) { // the first read frees the blocks
			post(t, client(t), d.URL()+"/v1/completions", "R", `{`+ask+`,"kv_transfer_params":`+string(kv)+`}`)
			if n := d.Counters(); n.WrongKV != wrong+read || n.TransfersLoaded != 1+read {
				t.Errorf("%s, read %d: %+v, %q", version, read, n, d.Refusals())
			}
		}
	}
}
