package fakevllm_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

func idPrompt(n int) []byte {
	b := []byte(`{"model":"fake-model","max_tokens":1,"prompt":[`)
	for i := range n {
		if i > 0 {
			b = append(b, ',', ' ')
		}
		b = fmt.Appendf(b, "%d", 10000+i*37%120000)
	}
	return append(b, `]}`...)
}

// BenchmarkParseTokenIDs is the cost of reading a prompt of about 100 KB of
// ids and of the answer's first token, without HTTP.
func BenchmarkParseTokenIDs(b *testing.B) {
	body := idPrompt(13500)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := fakevllm.ExpectedAnswers(false, body, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkParseText is the same for 1 MiB of text.
func BenchmarkParseText(b *testing.B) {
	body := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("some words of text ", 55000) + `"}],"max_tokens":1}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := fakevllm.ExpectedAnswers(true, body, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExpected is the cost of an expected token for a load generator.
func BenchmarkExpected(b *testing.B) {
	prompt := model.Tokenize("a prompt")
	b.ReportAllocs()
	for b.Loop() {
		fakevllm.ExpectedCompletion(prompt, fakevllm.Sampling{MaxTokens: 1000, IgnoreEOS: true})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/token")
}

// BenchmarkStream streams answers of 256 tokens, one event and flush each,
// over loopback to one reader per connection.
func BenchmarkStream(b *testing.B) {
	for _, conns := range []int{1, 16} {
		b.Run(fmt.Sprintf("conns=%d", conns), func(b *testing.B) {
			s, err := fakevllm.Start(b.Context(), fakevllm.Options{RecordLimit: fakevllm.RecordNone})
			require.NoError(b, err)
			defer s.Close()
			body := `{"messages":[{"role":"user","content":"hi"}],"max_tokens":256,"ignore_eos":true,"stream":true}`
			request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			benchRequests(b, s, conns, request, []byte("data: [DONE]\n\n\r\n0\r\n\r\n"))
			b.ReportMetric(256*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// BenchmarkShort is a request of one token in one piece.
func BenchmarkShort(b *testing.B) {
	s, err := fakevllm.Start(b.Context(), fakevllm.Options{RecordLimit: fakevllm.RecordNone})
	require.NoError(b, err)
	defer s.Close()
	body := `{"messages":[{"role":"user","content":"hi"}],"max_tokens":1}`
	request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	benchRequests(b, s, 1, request, []byte(`"kv_transfer_params":null}`))
}

func benchRequests(b *testing.B, s *fakevllm.Server, conns int, request, mark []byte) {
	b.Helper()
	b.ReportAllocs()
	work := make(chan struct{})
	done := make(chan error, conns)
	for range conns {
		go func() {
			conn, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", s.Address())
			if err != nil {
				done <- err
				return
			}
			defer func() { _ = conn.Close() }()
			in, buf, seen := bufio.NewReaderSize(conn, 64<<10), make([]byte, 64<<10), make([]byte, 0, 128<<10)
			for range work {
				if _, err := conn.Write(request); err != nil {
					done <- err
					return
				}
				for seen = seen[:0]; !bytes.HasSuffix(seen, mark); {
					n, err := in.Read(buf)
					if err != nil {
						done <- err
						return
					}
					seen = append(seen, buf[:n]...)
				}
				if !bytes.HasPrefix(seen, []byte(fmt.Sprintf("HTTP/1.1 %d", http.StatusOK))) {
					done <- fmt.Errorf("%s", seen)
					return
				}
			}
			done <- nil
		}()
	}
	for b.Loop() {
		work <- struct{}{}
	}
	close(work)
	for range conns {
		require.NoError(b, <-done)
	}
}
