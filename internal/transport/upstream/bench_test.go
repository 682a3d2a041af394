package upstream_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// fastEngine starts an engine with almost no overhead and no allocation per
// request: it reads a whole request and sends the pieces of one answer.
func fastEngine(b *testing.B, pieces ...[]byte) *instance.Instance {
	b.Helper()
	return instanceAt(testkit.RawServer(b, func(_ int, c net.Conn) { serveFast(c, pieces) }))
}

func serveFast(c net.Conn, pieces [][]byte) {
	buf := make([]byte, 64<<10)
	end, field := []byte("\r\n\r\n"), []byte("Content-Length: ")
	for {
		n, left := 0, -1
		for left != 0 {
			m, err := c.Read(buf[n:])
			if err != nil {
				return
			}
			if left > 0 {
				left -= m
				continue
			}
			n += m
			if i := bytes.Index(buf[:n], end); i >= 0 {
				length := 0
				if j := bytes.Index(buf[:i], field); j >= 0 {
					for _, d := range buf[j+len(field) : i] {
						if d < '0' || d > '9' {
							break
						}
						length = 10*length + int(d-'0')
					}
				}
				left, n = length-(n-i-len(end)), 0
			}
		}
		for _, p := range pieces {
			if _, err := c.Write(p); err != nil {
				return
			}
		}
	}
}

func benchmark(b *testing.B, in *instance.Instance, body [][]byte) {
	b.Helper()
	for _, kind := range []string{upstream.KindOwn, upstream.KindStd} {
		b.Run(kind, func(b *testing.B) {
			c := upstream.New(kind, upstream.Options{})
			defer c.Close()
			buf := make([]byte, 16<<10)
			values := []string{"application/json"}
			id := []string{"0123456789abcdef-01234567"}
			b.ReportAllocs()
			for b.Loop() {
				// Like forward, this uses a separate context for every leg.
				ctx, cancel := context.WithCancelCause(b.Context())
				resp, err := c.Do(ctx, &upstream.Request{
					Instance: in, Method: "POST", Path: "/v1/completions", Body: body,
					Header: http.Header{"Content-Type": values, "X-Request-Id": id, "User-Agent": nil},
				})
				require.NoError(b, err)
				for err == nil {
					_, err = resp.Body.Read(buf)
				}
				require.Equal(b, io.EOF, err)
				_ = resp.Body.Close()
				cancel(nil)
			}
		})
	}
}

func BenchmarkSmall(b *testing.B) {
	answer := `{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":"length"}]}`
	in := fastEngine(b, []byte(uvicornHead+"content-length: "+strconv.Itoa(len(answer))+"\r\ncontent-type: application/json\r\n\r\n"+answer))
	benchmark(b, in, [][]byte{[]byte(`{"model":"m","prompt":"`), bytes.Repeat([]byte("x"), 100), []byte(`","max_tokens":1}`)})
}

func BenchmarkStream64(b *testing.B) {
	pieces := [][]byte{[]byte(uvicornHead + "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n")}
	for i := range 64 {
		e := fmt.Sprintf(`data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"token %d"}]}`+"\n\n", i)
		pieces = append(pieces, fmt.Appendf(nil, "%x\r\n%s\r\n", len(e), e))
	}
	in := fastEngine(b, append(pieces, []byte("0\r\n\r\n"))...)
	benchmark(b, in, [][]byte{[]byte(`{"model":"m","stream":true,"prompt":"x"}`)})
}

func BenchmarkBody1MiB(b *testing.B) {
	in := fastEngine(b, []byte(uvicornHead+"content-length: 2\r\n\r\n{}"))
	prompt := bytes.Repeat([]byte("x"), 1<<20)
	benchmark(b, in, [][]byte{[]byte(`{"prompt":"`), prompt[:1<<19], prompt[1<<19:], []byte(`"}`)})
}

func BenchmarkBody64KiB(b *testing.B) {
	in := fastEngine(b, []byte(uvicornHead+"content-length: 2\r\n\r\n{}"))
	benchmark(b, in, [][]byte{[]byte(`{"prompt":"`), bytes.Repeat([]byte("x"), 64<<10), []byte(`"`), []byte(`}`)})
}
