package clients_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// TestEventBoundaries checks that long streams, sent both at full speed and token by token, reach the
// tools in pieces of whole events. Their texts contain many blanks, line feeds and quotes, also at the
// ends of events.
func TestEventBoundaries(t *testing.T) {
	t.Parallel()
	for _, itl := range []time.Duration{0, time.Millisecond} {
		t.Run(itl.String(), func(t *testing.T) {
			t.Parallel()
			r := start(t, setup{prefills: 1, decodes: 1, engine: func(o *fakevllm.Options) { o.ITL = itl }})
			for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
				prompt := `"prompt":"a long \n\n story"`
				if strings.Contains(path, "chat") {
					prompt = `"messages":[{"role":"user","content":"a long \n\n story"}]`
				}
				body := `{"model":"` + model + `",` + prompt + `,"max_tokens":700,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`
				head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", path, len(body))
				w, err := dial(t.Context(), r.proxy.Address)
				require.NoError(t, err)
				rep, err := w.ask(exchange{method: "POST", path: path, head: head, body: body}, r.proxy.Address)
				w.Close()
				require.NoError(t, err)
				want := expected(t, path, []byte(body))
				assert.NoError(t, rep.asVLLMBench(want), path)
				assert.NoError(t, rep.asAIPerf(want), path)
				assert.False(t, itl > 0 && len(rep.chunks) < 50,
					"%s: 700 events came in %d pieces: their times are lost", path, len(rep.chunks))
			}
			r.strict()
			r.split()
		})
	}
}
