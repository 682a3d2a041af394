package forward_test

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// A decode engine that is paused or asleep answers probes, but refuses requests: streams with an error after
// status 200. Another one serves, with a new prefill, since the refusal spent the KV transfer. If all are
// paused, the client gets the refusal; once they resume, it is served.
func TestPausedDecode(t *testing.T) {
	t.Parallel()
	for _, mode := range []fakevllm.Mode{fakevllm.NIXL, fakevllm.NIXLPush, fakevllm.Mooncake} {
		for _, stream := range both() {
			r := start(t, mode, 1, 2, nil)
			body := chatBody(stream, "")
			r.D[0].Pause(true)
			for range 3 {
				r.checkComplete(r.post("/v1/chat/completions", body), true, body)
				e := r.entry()
				assert.True(t, e.DecodeOnly == "" && e.Decode == r.D[1].Address(), "%s, stream %t: %+v", mode, stream, e)
			}
			r.D[1].Pause(true)
			a := r.post("/v1/chat/completions", body)
			r.entry()
			if a.status != http.StatusServiceUnavailable || !bytes.Contains(a.body, []byte(`"ServiceUnavailableError"`)) {
				t.Errorf("%s, stream %t: %d %s", mode, stream, a.status, a.body)
			}
			r.D[0].Pause(false)
			r.D[1].Pause(false)
			eventually(t, "they serve again", func() bool {
				a := r.post("/v1/chat/completions", body)
				e := r.entry()
				return a.status == http.StatusOK && e.DecodeOnly == ""
			})
			r.checkAnswers()
		}
	}
}

// A client does not get a decode engine's transfer params. Since vLLM 0.33, they are also in the last chunk
// of a stream.
func TestDecodeTransferParams_Hidden(t *testing.T) {
	t.Parallel()
	for _, stream := range both() {
		r := startTuned(t, fakevllm.NIXL, 1, 1, tuning{

			engine: func(o *fakevllm.Options) { o.Bidirectional = o.Role == fakevllm.RoleDecode },
		})
		body := chatBody(stream, `,"stream_options":null`)
		a := r.post("/v1/chat/completions", body)
		r.checkComplete(a, true, body)
		r.entry()
		n := r.D[0].Counters()
		assert.True(t, n.TransfersMade == 1 && n.TransfersLoaded == 1, "stream %t: %+v", stream, n)
		for _, secret := range []string{"remote_host", "remote_engine_id", r.D[0].EngineID()} {
			assert.False(t, bytes.Contains(a.body, []byte(secret)),
				"stream %t: the answer contains %s: %s", stream, secret, a.body)
		}
		assert.True(t, bytes.Contains(a.body, []byte(`"kv_transfer_params":null`)),
			"stream %t: the answer has no kv_transfer_params: %s", stream, a.body)
		r.checkEngines()
	}
}
