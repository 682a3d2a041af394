package forward_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

const transcriptions = "/v1/audio/transcriptions"

// sound is a file in which bytes look like parts of a form.
const sound = "RIFF\x00\xff\xfe\r\n\r\n--\r\n-B\r\n--A\r\n\"model\"\r\n\r\nother\r\n\x80"

// audioForm is a form with sound in it. Its boundary is B.
func audioForm(fields map[string]string) string {
	var b strings.Builder
	b.WriteString("--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n" + sound + "\r\n")
	if _, ok := fields["model"]; !ok {
		b.WriteString("--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n")
	}
	for name, value := range fields {
		fmt.Fprintf(&b, "--B\r\nContent-Disposition: form-data; name=%q\r\n\r\n%s\r\n", name, value)
	}
	return b.String() + "--B--\r\n"
}

func (r *rig) transcribe(body string) answer {
	r.t.Helper()
	return r.post(transcriptions, body, "Content-Type", "multipart/form-data; boundary=B", "X-PD-Trace", "1")
}

// A form reaches one engine byte for byte, whole or streamed, and another one if the first fails before it
// has answered.
func TestTranscriptions(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 2, nil)
	words := fakevllm.ExpectedTranscription([]byte(sound), "")
	for name, tc := range map[string]struct {
		fault  *fakevllm.Fault
		fields map[string]string
	}{
		"whole":                    {},
		"streamed":                 {fields: map[string]string{"stream": "true"}},
		"streamed, written oddly":  {fields: map[string]string{"stream": "Yes"}},
		"whole, retried":           {fault: &fakevllm.Fault{Kind: fakevllm.FaultReset, At: fakevllm.AfterRead}},
		"whole, a 500":             {fault: &fakevllm.Fault{Kind: fakevllm.FaultStatus, At: fakevllm.AfterRead, Status: 500}},
		"streamed, retried":        {fault: &fakevllm.Fault{Kind: fakevllm.FaultReset, At: fakevllm.AfterHeaders}, fields: map[string]string{"stream": "1"}},
		"streamed, an error first": {fault: &fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, At: fakevllm.AfterHeaders}, fields: map[string]string{"stream": "1"}},
	} {
		for _, d := range r.D {
			d.ClearFaults()
			d.ForgetRequests()
		}
		if tc.fault != nil {
			tc.fault.Path, tc.fault.Times = transcriptions, 1
			for _, d := range r.D {
				script(t, d, *tc.fault)
			}
		}
		body := audioForm(tc.fields)
		a := r.transcribe(body)
		e := r.entry()
		if a.status != http.StatusOK || a.err != nil || a.header.Get("X-Pd-Decode-Only") != "route" || e.DecodeOnly != "route" || e.Model != model {
			t.Fatalf("%s: %d %s %v, %+v", name, a.status, a.body, a.err, e)
		}
		if stream := tc.fields != nil; stream != e.Stream {
			t.Errorf("%s: stream %t", name, e.Stream)
		} else if timing := a.header.Get("X-PD-Timing"); stream != strings.Contains(timing, "first;dur=") {
			t.Errorf("%s: timing %q", name, timing)
		}
		text := ""
		if tc.fields == nil {
			var whole struct{ Text string }
			require.NoError(t, json.Unmarshal(a.body, &whole), "%s: %s", name, a.body)
			text = whole.Text
		} else {
			text = a.text(t)
			n := len(a.events())
			assert.True(t, n == len(words)+1 && a.events()[n-1] == "[DONE]", "%s: %d events: %s", name, n, a.body)
		}
		assert.Equal(t, strings.Join(words, ""), text, "%s: want %q", name, words)
		legs := 0
		for _, d := range r.D {
			for _, q := range d.Requests() {
				if q.Path != transcriptions {
					continue
				}
				if legs++; string(q.Body) != body || q.Header.Get("Content-Type") != "multipart/form-data; boundary=B" {
					t.Errorf("%s: the engine got %v %q", name, q.Header, q.Body)
				}
			}
		}
		if tc.fault == nil && legs != 1 || tc.fault != nil && legs < 2 {
			t.Errorf("%s: %d legs", name, legs)
		}
	}
	assert.Equal(t, 0, len(posted(r.P[0])), "prefill")
}

// An invalid form is refused with vLLM's status. Fields that steer KV transfers reach no engine.
func TestBadForms(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 0, 1, func(o *forward.Options) { o.MaxBody = 1000 })
	multipart := "multipart/form-data; boundary=B"
	for name, tc := range map[string]struct {
		contentType, body string
		status            int
		says              string
	}{
		"json":            {"application/json", `{"model":"m"}`, 400, "body.file: Field required"},
		"text in a form":  {"application/x-www-form-urlencoded", "model=m&file=x", 422, "Expected 'file' to be a file-like object, not 'str'."},
		"no boundary":     {"multipart/form-data", audioForm(nil), 400, "invalid form: missing boundary in Content-Type"},
		"cut":             {multipart, audioForm(nil)[:60], 400, "invalid form: malformed header of a part"},
		"cut at the end":  {multipart, strings.TrimSuffix(audioForm(nil), "--\r\n"), 400, "invalid form: malformed header of a part"},
		"no form":         {multipart, "hello", 400, "invalid form: the body does not begin with the boundary"},
		"unknown model":   {multipart, audioForm(map[string]string{"model": "other"}), 404, "The model `other` does not exist. Valid aliases: m."},
		"bad stream":      {multipart, audioForm(map[string]string{"stream": "maybe"}), 400, `"param":"body.stream"`},
		"steering":        {multipart, audioForm(map[string]string{"vllm_xargs": `{"kv_transfer_params":"x"}`}), 400, "must not hold transfer parameters"},
		"another charset": {multipart + "; charset=utf-7", audioForm(map[string]string{"+AHYAbABsAG0AXwB4AGEAcgBnAHM-": `{"+AGsAdg-_transfer+AF8-params":"x"}`}), 400, "must be utf-8"},
		"too large":       {multipart, audioForm(map[string]string{"prompt": strings.Repeat("x", 1000)}), 413, "larger than 1000 bytes"},
	} {
		a := r.post(transcriptions, tc.body, "Content-Type", tc.contentType)
		assert.True(t, a.status == tc.status && strings.Contains(string(a.body), tc.says),
			"%s: %d %s", name, a.status, a.body)
		r.entry()
	}
	for _, q := range r.D[0].Requests() {
		if bytes.Contains(q.Body, []byte("kv_transfer_params")) || strings.Contains(q.Header.Get("Content-Type"), "utf-7") {
			t.Errorf("the engine got %v %s", q.Header, q.Body)
		}
	}
	assert.Len(t, r.D[0].Violations(), 0)
}

// GET /load counts the requests that this proxy answers now.
func TestRequestsInFlight(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 0, 1, nil)
	load := func() string { return string(r.get("/load").body) }
	require.Equal(t, `{"server_load":0}`+"\n", load(), "at rest")
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.AfterRead, Path: "*"})
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan answer, 2)
	for _, path := range []string{"/v1/completions", "/tokenize"} {
		go func() { ended <- r.postCtx(ctx, path, `{"model":"m","prompt":"a"}`) }()
	}
	eventually(t, "both are counted", func() bool { return r.handler.Requests() == 2 })
	assert.Equal(t, `{"server_load":2}`+"\n", load(), "two hang")
	leave()
	<-ended
	<-ended
	eventually(t, "no request is counted any more", func() bool { return r.handler.Requests() == 0 })
}
