package load_test

import (
	"bytes"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/load"
	"github.com/pdmesh/pdmesh/bench/wire"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// badly serves whole answers of a shape; how says what it does with the nth
// connection's ith request (both from 0) and its right answer.
func badly(t *testing.T, shape answer.Shape, how func(c *net.TCPConn, n, i int, right []byte) error) string {
	t.Helper()
	return testkit.RawServer(t, func(n int, c net.Conn) {
		q := answer.NewRequest(shape, false)
		w := answer.NewWhole(answer.Chat, shape.Tokens, q.Len(), q.Sum, false)
		r := wire.NewReader(c, 4<<10)
		for i := 0; ; i++ {
			h, err := r.Head()
			if err != nil {
				return
			}
			body := make([]byte, h.Length)
			if err := r.Full(body); err != nil {
				return
			}
			_, rest, _ := bytes.Cut(body, []byte(answer.Mark))
			tag, err := answer.ParseTag(rest)
			if err != nil {
				t.Error(err)
				return
			}
			w.SetTag(tag)
			right := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(w.Body), w.Body)
			if err := how(c.(*net.TCPConn), n, i, right); err != nil {
				return
			}
		}
	})
}

// TestSilentEnds: a target that ends its side without a word, and reads on, fails
// the next request, which is not waited for until the end of the load.
func TestSilentEnds(t *testing.T) {
	t.Parallel()
	shape := answer.Shape{Prompt: 64, Tokens: 1}
	addr := badly(t, shape, func(c *net.TCPConn, n, i int, right []byte) error {
		if n == 0 && i > 0 {
			return nil // and no answer
		}
		if _, err := c.Write(right); err != nil || n > 0 {
			return err
		}
		return c.CloseWrite()
	})
	tally := until(t, load.Plan{Addresses: []string{addr}, Shape: shape, Conns: 1}, 3)
	if tally.Right.Load() < 2 || tally.Failed.Load() != 1 || tally.Bad() != 1 {
		t.Errorf("%v: %q", tally, tally.Problems())
	}
}

// TestAnswersAhead: what came behind an answer is the next one's beginning, and
// wrong; the request is sent all the same.
func TestAnswersAhead(t *testing.T) {
	t.Parallel()
	shape := answer.Shape{Prompt: 64, Tokens: 1}
	var seconds atomic.Int64
	addr := badly(t, shape, func(c *net.TCPConn, n, i int, right []byte) error {
		if n == 0 && i == 0 {
			right = append(right, right...)
		} else if n == 0 {
			seconds.Add(1)
		}
		_, err := c.Write(right)
		return err
	})
	tally := until(t, load.Plan{Addresses: []string{addr}, Shape: shape, Conns: 1}, 3)
	if tally.Right.Load() < 2 || tally.Wrong.Load() != 1 || tally.Bad() != 1 {
		t.Errorf("%v: %q", tally, tally.Problems())
	}
	testkit.Eventually(t, time.Minute, func() error {
		if n := seconds.Load(); n != 1 {
			return fmt.Errorf("%d requests came behind the first", n)
		}
		return nil
	})
}

// TestLeavingAtOnce: who leaves before the first token has sent its request.
func TestLeavingAtOnce(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		e, addrs := startEngine(t, 0)
		tally := until(t, load.Plan{Addresses: addrs, Shape: answer.Shape{Prompt: 64, Tokens: 1, Stream: stream}, Conns: 4, Leave: 1}, 20)
		if tally.Bad() > 0 || tally.Right.Load() > 0 {
			t.Errorf("%v: %q", tally, tally.Problems())
		}
		testkit.Eventually(t, time.Minute, func() error {
			if s, left := e.Stats(), tally.Left.Load(); s.Requests != left {
				return fmt.Errorf("%d clients left, the engine saw %+v", left, s)
			}
			return nil
		})
	}
}
