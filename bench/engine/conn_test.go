package engine_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/engine"
	"github.com/pdmesh/pdmesh/bench/wire"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// dial connects, and gives up after a while.
func dial(t *testing.T, e *engine.Engine) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", e.Addresses()[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// post is a request for a completion.
func post(header, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", answer.Path, header, len(body), body)
}

// ask is the body of one for n tokens whose answer has a tag.
func ask(tag, tokens int, stream bool) string {
	return fmt.Sprintf(`{"messages":[{"content":%s%016x hello"}],"max_tokens":%d,"stream":%v}`, answer.Mark, tag, tokens, stream)
}

// read takes one answer's body.
func read(t *testing.T, r *wire.Reader) string {
	t.Helper()
	h, err := r.Head()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := r.Body(h, func(p []byte) error { b.Write(p); return nil }); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestImpatient: clients that send the next request before they have the answer, or
// nothing more than one request, get all answers in their order.
func TestImpatient(t *testing.T) {
	t.Parallel()
	e, _ := start(t)
	c := dial(t, e)
	requests := post("", ask(1, 2, false)) + post("", ask(2, 3, true)) + "GET /version HTTP/1.1\r\n\r\n" + post("", ask(4, 1, false)) + post("", ask(5, 1, true))
	if _, err := io.WriteString(c, requests); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r := wire.NewReader(c, 64)
	for i, want := range []string{" 0000000000000001.000001\"", " 0000000000000002.000002\"", "0.24.0", " 0000000000000004.000000", " 0000000000000005.000000"} {
		if got := read(t, r); !strings.Contains(got, want) {
			t.Errorf("answer %d: %q is not in %s", i, want, got)
		}
	}
	if _, err := r.Head(); err != io.EOF {
		t.Errorf("behind the last answer: %v, want the end", err)
	}
	if s := e.Stats(); s.Requests != 4 || s.Aborts != 0 {
		t.Errorf("the engine saw %+v", s)
	}
}

// TestContinue: a client that waits until its body is wanted has the answer before
// it first.
func TestContinue(t *testing.T) {
	t.Parallel()
	e, _ := start(t)
	c := dial(t, e)
	body := ask(2, 1, false)
	last := post("Expect: 100-continue\r\nConnection: close\r\n", body)
	if _, err := io.WriteString(c, post("", ask(1, 1, false))+strings.TrimSuffix(last, body)); err != nil {
		t.Fatal(err)
	}
	r := wire.NewReader(c, 64)
	if got := read(t, r); !strings.Contains(got, " 0000000000000001.000000") {
		t.Errorf("the first answer is %s", got)
	}
	if h, err := r.Head(); err != nil || h.Status != 100 {
		t.Fatalf("%+v, %v, want status 100", h, err)
	}
	if _, err := io.WriteString(c, body); err != nil {
		t.Fatal(err)
	}
	if got := read(t, r); !strings.Contains(got, " 0000000000000002.000000") {
		t.Errorf("the second answer is %s", got)
	}
	if _, err := r.Head(); err != io.EOF {
		t.Errorf("behind the last answer: %v, want the end", err)
	}
}

// TestAborts counts clients that leave in the middle of an answer which is larger
// than what is on the way.
func TestAborts(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			t.Parallel()
			e, _ := start(t)
			c := dial(t, e)
			if _, err := io.WriteString(c, post("", ask(1, 999_999, stream))); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			_ = c.SetLinger(0)
			c.Close()
			testkit.Eventually(t, time.Minute, func() error {
				if s := e.Stats(); s.Aborts != 1 || s.LastAbort.IsZero() {
					return fmt.Errorf("the engine saw %+v", s)
				}
				return nil
			})
		})
	}
}
