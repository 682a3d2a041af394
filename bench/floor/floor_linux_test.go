package floor_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/engine"
	"github.com/pdmesh/pdmesh/bench/floor"
	"github.com/pdmesh/pdmesh/bench/load"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// A floor waits in the kernel with one of Go's processors in its hand, so each
// is a process of its own here as well: this test, started again.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "floor" {
		os.Exit(serve(os.Args[2], os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}

func serve(prefill, decode string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	f, err := floor.Listen(floor.Options{Listen: "127.0.0.1:0", Prefill: strings.Split(prefill, ","), Decode: strings.Split(decode, ",")})
	if err == nil {
		fmt.Fprintln(os.Stdout, f.Address())
		err = f.Serve(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a floor that runs.
type process struct {
	cmd    *exec.Cmd
	addr   string
	stderr bytes.Buffer
}

// start starts one. Unless the test has waited for its end, it must run until
// the end of the test and then end well.
func start(t *testing.T, prefill, decode []string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], "floor", strings.Join(prefill, ","), strings.Join(decode, ","))}
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState != nil {
			return
		}
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("the floor ended with %v: %s", err, p.stderr.String())
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	p.addr = strings.TrimSpace(line)
	return p
}

// surprise waits for its end and returns what it says.
func (p *process) surprise(t *testing.T) string {
	t.Helper()
	var exit *exec.ExitError
	if err := p.cmd.Wait(); !errors.As(err, &exit) {
		t.Errorf("the floor ended with %v", err)
	}
	return p.stderr.String()
}

func startEngine(t *testing.T, itl time.Duration) *engine.Engine {
	t.Helper()
	any4 := []string{"127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"}
	e, err := engine.Start(t.Context(), engine.Options{Listen: any4, ITL: itl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestAnswers: every answer is right to the last byte, and every decode leg
// brings the hand-over of its own prompt.
func TestAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		shape answer.Shape
		conns int
		leave float64
		want  uint64
		itl   time.Duration
	}{
		{name: "whole", shape: answer.Shape{Prompt: 128, Tokens: 1}, conns: 32, want: 500},
		{name: "stream", shape: answer.Shape{Prompt: 2 << 10, Tokens: 64, Stream: true}, conns: 32, want: 200},
		{name: "prompt of 64 KiB", shape: answer.Shape{Prompt: 64 << 10, Tokens: 1}, conns: 16, want: 100},
		{name: "prompt of 1 MiB", shape: answer.Shape{Prompt: 1 << 20, Tokens: 3}, conns: 8, want: 30},
		{name: "prompt of 1 MiB, streamed", shape: answer.Shape{Prompt: 1 << 20, Tokens: 3, Stream: true}, conns: 8, want: 30},
		{name: "prompt of 24 MiB, written in parts", shape: answer.Shape{Prompt: 24 << 20, Tokens: 1}, conns: 2, want: 6},
		{name: "an answer longer than a read", shape: answer.Shape{Prompt: 128, Tokens: 2000}, conns: 4, want: 50},
		{name: "paced", shape: answer.Shape{Prompt: 512, Tokens: 5, Stream: true}, conns: 20, want: 100, itl: time.Millisecond},
		{name: "clients that leave", shape: answer.Shape{Prompt: 512, Tokens: 50, Stream: true}, conns: 20, want: 100, leave: 0.5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := startEngine(t, tt.itl)
			addrs := e.Addresses()
			p := start(t, addrs[:2], addrs[2:])
			g, err := load.Start(t.Context(), load.Plan{Addresses: []string{p.addr}, Shape: tt.shape, Conns: tt.conns, Leave: tt.leave, Seed: 1})
			if err != nil {
				t.Fatal(err)
			}
			tally := g.Tally()
			testkit.Eventually(t, time.Minute, func() error {
				if tally.Bad() == 0 && (tally.Right.Load() < tt.want || tt.leave > 0 && tally.Left.Load() < tt.want) {
					return fmt.Errorf("not enough: %v", tally)
				}
				return nil
			})
			if cut := g.Stop(30 * time.Second); cut > 0 {
				t.Errorf("%d requests had no answer", cut)
			}
			if tally.Bad() > 0 {
				t.Fatalf("%v: %q; the floor says %s", tally, tally.Problems(), p.stderr.String())
			}
			s := e.Stats()
			if s.Violations > 0 || s.Prefills == 0 || s.Requests != s.Prefills+s.Handovers {
				t.Errorf("the engine saw %+v", s)
			}
			if tt.leave == 0 && s.Prefills != s.Handovers {
				t.Errorf("%d prefills, %d hand-overs", s.Prefills, s.Handovers)
			}
		})
	}
}

// ask sends a request on a connection of its own.
func ask(t *testing.T, addr string, req *answer.Request) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	fmt.Fprintf(nc, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", answer.Path, len(req.Body), req.Body)
	return nc
}

// TestSlowClient: what the client does not take waits, and so does the engine,
// while others are served.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	const size = 64 << 20 // more than all buffers on the way hold
	body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	var written atomic.Int64
	large := serveInstance(t, func(nc net.Conn) {
		fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size)
		for i := 0; i < size; i += 64 << 10 {
			n, _ := nc.Write(body[i : i+64<<10])
			written.Add(int64(n))
		}
	})
	p := start(t, []string{instance(t, first, false)}, []string{large, instance(t, whole, false)})
	req := answer.NewRequest(answer.Shape{Prompt: 64, Tokens: 1}, false)
	slow := ask(t, p.addr, req) // goes to the first one
	seen := int64(-1)
	testkit.Eventually(t, time.Minute, func() error {
		before := seen
		if seen = written.Load(); seen == 0 || seen != before {
			return fmt.Errorf("%d bytes written, and more to come", seen)
		}
		return nil
	})
	quick := ask(t, p.addr, req)
	got := make([]byte, len(whole))
	if _, err := io.ReadFull(quick, got); err != nil || string(got) != whole {
		t.Fatalf("%q, %v", got, err)
	}
	res, err := http.ReadResponse(bufio.NewReader(slow), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if all, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(all, body) {
		t.Fatalf("%d bytes of %d came, or others: %v", len(all), size, err)
	}
}

// instance answers every request with the same bytes, each byte in a write of
// its own if bytewise; without any it ends the connection instead.
func instance(t *testing.T, text string, bytewise bool) string {
	t.Helper()
	pieces := []string{text}
	if bytewise {
		pieces = strings.Split(text, "")
	}
	return serveInstance(t, func(nc net.Conn) {
		if text == "" {
			nc.Close()
		}
		for _, p := range pieces {
			_, _ = io.WriteString(nc, p)
		}
	})
}

// serveInstance reads requests and lets reply answer them, one connection at a
// time.
func serveInstance(t *testing.T, reply func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(nc)
			for {
				req, err := http.ReadRequest(r)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, req.Body)
				reply(nc)
			}
			nc.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

const (
	first  = "HTTP/1.1 200 OK\r\ncontent-length: 31\r\n\r\n" + `{"x":1,"kv_transfer_params":{}}`
	whole  = "HTTP/1.1 200 OK\r\nX-Any: thing\r\nContent-Length: 5\r\n\r\nhello"
	stream = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nd: x\n\r\n20\r\n0123456789abcdef0123456789abcde\n\r\n0\r\n\r\n"
)

// TestPieces: answers are known by their framing, however they come, and what
// the client gets is what the instance said, its head included.
func TestPieces(t *testing.T) {
	t.Parallel()
	for _, text := range []string{whole, stream} {
		for _, bytewise := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d bytes, one by one %v", len(text), bytewise), func(t *testing.T) {
				t.Parallel()
				p := start(t, []string{instance(t, first, bytewise)}, []string{instance(t, text, bytewise)})
				nc, err := net.Dial("tcp", p.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer nc.Close()
				req := answer.NewRequest(answer.Shape{Prompt: 64, Tokens: 1}, false)
				for range 5 {
					message := fmt.Sprintf("POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s", len(req.Body), req.Body)
					if !bytewise {
						_, _ = io.WriteString(nc, message)
					} else {
						for _, b := range []byte(message) {
							_, _ = nc.Write([]byte{b})
						}
					}
					got := make([]byte, len(text))
					if _, err := io.ReadFull(nc, got); err != nil || string(got) != text {
						t.Fatalf("%q, %v", got, err)
					}
				}
			})
		}
	}
}

// TestSurprises: the floor ends and says what it met.
func TestSurprises(t *testing.T) {
	t.Parallel()
	req := func(more string) string {
		body := answer.NewRequest(answer.Shape{Prompt: 64, Tokens: 1}, false).Body
		return fmt.Sprintf("POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s%s", len(body), body, more)
	}
	tests := []struct {
		name, request, prefill, decode, want string
	}{
		{"another status", req(""), "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", whole, "500 No"},
		{"another status of the second leg", req(""), first, "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", "503 No"},
		{"no hand-over", req(""), whole, whole, "no hand-over"},
		{"more than it said", req(""), first, whole + "more", "more than it said"},
		{"more of the first leg", req(""), first + "more", whole, "more than it said"},
		{"no framing", req(""), first, "HTTP/1.1 200 OK\r\n\r\n", "answers"},
		{"no HTTP", req(""), "hello\r\n\r\n", whole, "answers"},
		{"an instance that ends", req(""), "", whole, "closes a connection"},
		{"two requests at once", req("POST"), first, whole, "before it has its answer"},
		{"a request in chunks", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", first, whole, "without a length"},
		{"a client that waits", "POST / HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n", first, whole, "waits"},
		{"another body", "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", first, whole, "max_tokens"},
		{"no request", "hello\r\nhello\r\n\r\n", first, whole, "malformed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := start(t, []string{instance(t, tt.prefill, false)}, []string{instance(t, tt.decode, false)})
			nc, err := net.Dial("tcp", p.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			_, _ = io.WriteString(nc, tt.request)
			if said := p.surprise(t); !strings.Contains(said, tt.want) || !strings.Contains(said, floor.ErrSurprise.Error()) {
				t.Errorf("%q does not say %q", said, tt.want)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	good := []string{"127.0.0.1:1"}
	for name, o := range map[string]floor.Options{
		"no prefill":      {Listen: "127.0.0.1:0", Decode: good},
		"no decode":       {Listen: "127.0.0.1:0", Prefill: good},
		"a name":          {Listen: "127.0.0.1:0", Prefill: good, Decode: []string{"localhost:1"}},
		"IPv6":            {Listen: "127.0.0.1:0", Prefill: []string{"[::1]:1"}, Decode: good},
		"nowhere":         {Prefill: good, Decode: good},
		"without a port":  {Listen: "127.0.0.1", Prefill: good, Decode: good},
		"an empty member": {Listen: "127.0.0.1:0", Prefill: []string{""}, Decode: good},
	} {
		if _, err := floor.Listen(o); !errors.Is(err, floor.ErrOptions) {
			t.Errorf("%s: error %v, want ErrOptions", name, err)
		}
	}
}
