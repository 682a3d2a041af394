package forward_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// loggingRecorder writes lines of the access log, as the proxy does.
type loggingRecorder struct {
	noRecorder
	log *forward.AccessLog
}

func (l loggingRecorder) Done(e *forward.Entry) { l.log.Write(e) }

type discarding struct{}

func (discarding) Write(b []byte) (int, error) { return len(b), nil }

// pythonFields are the header fields that OpenAI's library for Python sends with each request.
const pythonFields = "accept: application/json\r\naccept-encoding: gzip, deflate\r\nauthorization: Bearer sk-0123456789abcdef\r\n" +
	"connection: keep-alive\r\nuser-agent: OpenAI/Python 2.8.1\r\nx-stainless-arch: x64\r\nx-stainless-async: async:asyncio\r\n" +
	"x-stainless-lang: python\r\nx-stainless-os: Linux\r\nx-stainless-package-version: 2.8.1\r\nx-stainless-raw-response: true\r\n" +
	"x-stainless-read-timeout: 600\r\nx-stainless-retry-count: 0\r\nx-stainless-runtime: CPython\r\nx-stainless-runtime-version: 3.12.3\r\n"

// BenchmarkWire measures one whole request over TCP: the server, both legs with the client of package
// upstream, and the access log line. Client and engines allocate nothing, so that all allocations are the
// proxy's.
func BenchmarkWire(b *testing.B) {
	whole := []byte("HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: " +
		strconv.Itoa(len(plainAnswer)) + "\r\ncontent-type: application/json\r\n\r\n" + plainAnswer)
	for _, bc := range []struct {
		name      string
		size      int
		instances int // in each role
		fields    string
	}{{"128", 128, 1, ""}, {"65536", 64 << 10, 1, ""}, {"128-of-1000", 128, 500, ""}, {"128-by-python", 128, 1, pythonFields}} {
		b.Run(bc.name, func(b *testing.B) {
			size := bc.size
			address := wired(b, listening(b, whole, bc.instances), listening(b, whole, bc.instances))
			c, err := net.Dial("tcp", address)
			require.NoError(b, err)
			defer func() { _ = c.Close() }()
			body := fmt.Sprintf(`{"model":"m","prompt":"%s","max_tokens":1,"temperature":0}`, strings.Repeat("x", size))
			request := fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", bc.fields, len(body), body)
			buf := make([]byte, 8<<10)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Write(request); err != nil {
					b.Fatal(err)
				}
				if !messageEnds(c, buf) || !bytes.HasPrefix(buf, []byte("HTTP/1.1 200 ")) {
					b.Fatalf("%q", buf[:400])
				}
			}
		})
	}
}

// wired starts a proxy in front of these engines.
func wired(b *testing.B, prefill, decode []string) string {
	b.Helper()
	client := upstream.NewPool(upstream.Options{})
	b.Cleanup(client.Close)
	queue := logging.NewQueue(discarding{}, nil)
	b.Cleanup(func() { queue.Flush(time.Minute) })
	lines := forward.NewAccessLog(queue, logging.FormatText)
	h := rolesHandler(b, client, func(o *forward.Options) { o.Recorder = loggingRecorder{log: lines} }, prefill, decode)
	deps := httpapi.Deps{Log: quiet(), Data: httpapi.DataHandlers{
		Generate: h.Completion, Passthrough: h.Passthrough, Form: h.Form, PassthroughGet: h.PassthroughGet, Stored: h.Stored, Models: h.Models,
	}}
	s := &http.Server{Handler: httpapi.NewRouter(deps, true), ReadHeaderTimeout: time.Minute}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	var work sync.WaitGroup
	work.Go(func() { _ = s.Serve(ln) })
	b.Cleanup(func() { _ = s.Close(); work.Wait() })
	return ln.Addr().String()
}

// listening starts engines that answer every request with the same bytes. It is not
// testkit.RawServer, which allocates for each connection: with many engines that would count.
func listening(b *testing.B, answer []byte, engines int) []string {
	b.Helper()
	var work sync.WaitGroup
	var all []net.Listener
	var addresses []string
	for range engines {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		all, addresses = append(all, ln), append(addresses, ln.Addr().String())
		work.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				work.Go(func() {
					defer func() { _ = c.Close() }()
					for buf := make([]byte, 80<<10); messageEnds(c, buf); {
						if _, err := c.Write(answer); err != nil {
							return
						}
					}
				})
			}
		})
	}
	b.Cleanup(func() {
		for _, ln := range all {
			_ = ln.Close()
		}
		work.Wait()
	})
	return addresses
}

var headEnd, lengthField = []byte("\r\n\r\n"), []byte("Content-Length: ")

// messageEnds reads one message of known length into buf.
func messageEnds(c net.Conn, buf []byte) bool {
	for n, end := 0, -1; end < 0 || n < end; {
		m, err := c.Read(buf[n:])
		if err != nil {
			return false
		}
		n += m
		if end >= 0 {
			continue
		}
		if i := bytes.Index(buf[:n], headEnd); i >= 0 {
			length, at := 0, bytes.Index(buf[:i], lengthField)
			if at < 0 {
				return false
			}
			for _, d := range buf[at+len(lengthField) : i] {
				if d < '0' || d > '9' {
					break
				}
				length = 10*length + int(d-'0')
			}
			end = i + len(headEnd) + length
		}
	}
	return true
}
