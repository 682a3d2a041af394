package forward_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

func finished() *forward.Entry {
	return &forward.Entry{
		RequestID: "r-1", Client: "127.0.0.1:5", Method: "POST", Path: "/v1/completions", Model: "org/m", Route: flow.Route{Stream: true, Prefill: "127.0.0.1:8100", Decode: "[::1]:8200", Failed: 1, Revision: 7},
		Result: relay.Result{
			Status: 200, Outcome: relay.OutcomeOK, Bytes: 20, TTFT: 2003 * time.Microsecond,
			Tokens: response.Tokens{Input: 1000, Cached: 512, Output: 64, Finish: "stop"},
		},
		BytesIn: 10, Start: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Duration: 1234567 * time.Microsecond, TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
	}
}

// line returns the access log line of a request.
func line(tb testing.TB, format string, e *forward.Entry) string {
	tb.Helper()
	var out bytes.Buffer
	forward.NewAccessLog(&out, format).Write(e)
	return out.String()
}

func TestAccessLog_Text(t *testing.T) {
	t.Parallel()
	want := `time="2026-01-02T03:04:06.234Z" level=info msg=request request_id=r-1 client=127.0.0.1:5 method=POST` +
		` path=/v1/completions model=org/m stream=true status=200 outcome=ok finish_reason=stop prefill=127.0.0.1:8100 decode=[::1]:8200` +
		` failed_legs=1 revision=7 bytes_in=10 bytes_out=20 input_tokens=1000 cached_tokens=512 output_tokens=64 ms=1234.567 ttft_ms=2.003` +
		` trace_id=4bf92f3577b34da6a3ce929d0e0e4736` + "\n"
	assert.Equal(t, want, line(t, logging.FormatText, finished()))
}

func TestAccessLog_JSON(t *testing.T) {
	t.Parallel()
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(line(t, logging.FormatJSON, finished())), &got))
	for k, want := range map[string]any{
		"time": "2026-01-02T03:04:06.234567Z", "level": "info", "msg": "request", "request_id": "r-1", "stream": true,
		"status": 200.0, "ms": 1234.567, "ttft_ms": 2.003, "model": "org/m", "failed_legs": 1.0,
		"input_tokens": 1000.0, "cached_tokens": 512.0, "output_tokens": 64.0, "finish_reason": "stop", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
	} {
		assert.Equal(t, want, got[k], k)
	}
	unpicked := finished()
	unpicked.Model, unpicked.Revision = "", 0
	if got := line(t, logging.FormatJSON, unpicked); strings.Contains(got, "model") || strings.Contains(got, "revision") {
		t.Errorf("empty fields: %s", got)
	}
	for _, absent := range []string{"decode_only", "failure", "key_name", "elsewhere"} {
		if _, ok := got[absent]; ok {
			t.Errorf("%s is there though it is empty", absent)
		}
	}
}

// Text from clients and engines can neither end a line nor forge a field.
func TestAccessLog_HostileValues(t *testing.T) {
	t.Parallel()
	for _, v := range []string{
		"/a b", "/a\nlevel=error msg=forged", `/a"quoted"`, `/back\slash`, "/esc\x1b[2J", "/\xff\xfe", "/ü", "", "/a=b", "/\u2028", "/del\x7f", "/a,b<>&",
	} {
		e := finished()
		e.Path = v
		text := line(t, logging.FormatText, e)
		assert.True(t, strings.Count(text, "\n") == 1 && !strings.ContainsRune(text, 0x1b), "%q: text line %q", v, text)
		assert.False(t, strings.Contains(text, " msg=forged") && !strings.Contains(text, `"/a\nlevel=error msg=forged"`),
			"%q: forged a field in %q", v, text)
		object := line(t, logging.FormatJSON, e)
		var got struct{ Path string }
		if err := json.Unmarshal([]byte(object), &got); err != nil || strings.Count(object, "\n") != 1 {
			t.Fatalf("%q: %v in %q", v, err, object)
		}
		want := strings.ReplaceAll(v, "\xff\xfe", "\uFFFD\uFFFD")
		assert.Equal(t, want, got.Path, "%q became", v)
	}
	e := finished()
	e.Model, e.Finish = "a\nb\u202e"+strings.Repeat("x", 1000), "\x00"
	if got := line(t, logging.FormatText, e); len(got) > 800 || strings.ContainsAny(got, "\x00\u202e") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// An output that accepts no data blocks no request, and dropped lines are counted.
func TestAccessLog_StalledOutput(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	lost := 0
	queue := logging.NewQueue(w, func(lines int) { lost += lines })
	log := forward.NewAccessLog(queue, logging.FormatText)
	e := finished()
	e.Path = "/" + strings.Repeat("x", 1000)
	const lines = 10_000 // 12 MB, of which 4 fit
	for range lines {
		log.Write(e)
	}
	var read bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(&read, r)
	}()
	assert.True(t, queue.Flush(time.Minute), "not all is written")
	_ = w.Close()
	<-done
	got := bytes.Count(read.Bytes(), []byte("\n"))
	assert.True(t, lost != 0 && got+lost == lines, "%d lines came and %d were lost, of %d", got, lost, lines)
}

// BenchmarkAccessLog measures the CPU time of one line, without and with the queue, which the benchmark fills
// faster than any proxy.
func BenchmarkAccessLog(b *testing.B) {
	for _, format := range []string{logging.FormatText, logging.FormatJSON} {
		for _, queued := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/queued=%t", format, queued), func(b *testing.B) {
				queue := logging.NewQueue(io.Discard, nil)
				log := forward.NewAccessLog(io.Discard, format)
				if queued {
					log = forward.NewAccessLog(queue, format)
				}
				e := finished()
				b.ReportAllocs()
				for b.Loop() {
					log.Write(e)
				}
				queue.Flush(time.Minute)
			})
		}
	}
}
