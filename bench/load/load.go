// Package load is the load generator of the benchmark: a closed loop of clients, each with
// one connection, which compare every byte of every response with the correct one
// (package answer). It uses little CPU, because it shares a core with the engines.
package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// Plan describes a load.
type Plan struct {
	Address string // host:port of the target
	Shape   answer.Shape
	Conns   int           // number of clients
	Ramp    time.Duration // time over which the clients start
}

// Tally counts the responses of a load. Its methods are safe for concurrent use.
type Tally struct {
	Right, Wrong, Failed atomic.Uint64 // responses; Failed have another status than 200 or end with an error
	Tokens               atomic.Uint64
	TTFT                 loadgen.Histogram // to the first token; to the end if the response is not streamed
	ITL                  loadgen.Histogram // between the tokens of a stream

	mu       sync.Mutex
	problems []string
}

// maxProblems is the number of errors that a Tally keeps.
const maxProblems = 5

func (t *Tally) fail(n *atomic.Uint64, err error) {
	n.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.problems) < maxProblems {
		t.problems = append(t.problems, err.Error())
	}
}

// Problems returns the first errors.
func (t *Tally) Problems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.problems...)
}

// Bad returns the number of responses that were not correct.
func (t *Tally) Bad() uint64 { return t.Wrong.Load() + t.Failed.Load() }

// Generator is a running load. It is safe for concurrent use.
type Generator struct {
	plan            Plan
	began           time.Time
	tally           atomic.Pointer[Tally]
	open            atomic.Int64
	ending, cutting atomic.Bool
	cancel          context.CancelFunc
	done            chan struct{} // closed when all clients have ended
}

// Start starts the clients. They run until Stop.
func Start(ctx context.Context, p Plan) *Generator {
	ctx, cancel := context.WithCancel(ctx)
	g := &Generator{plan: p, began: time.Now(), cancel: cancel, done: make(chan struct{})}
	g.tally.Store(new(Tally))
	var clients sync.WaitGroup
	for i := range p.Conns {
		clients.Go(func() {
			if sleep.For(ctx, p.Ramp*time.Duration(i)/time.Duration(p.Conns)) {
				newClient(g, i).run(ctx)
			}
		})
	}
	go func() {
		clients.Wait()
		close(g.done)
	}()
	return g
}

// Swap makes t the current Tally, and returns the former one. A response is counted in the Tally
// that is current when it ends. A client that is counting now may still change the former Tally.
func (g *Generator) Swap(t *Tally) *Tally { return g.tally.Swap(t) }

// Tally returns the current Tally.
func (g *Generator) Tally() *Tally { return g.tally.Load() }

// Open returns the number of streams whose first token has arrived.
func (g *Generator) Open() int { return int(g.open.Load()) }

// Stop ends the load. It waits up to grace for responses in progress, closes the other
// connections, and blocks until all clients have ended. It reports whether connections
// had to be closed.
func (g *Generator) Stop(grace time.Duration) (cut bool) {
	g.ending.Store(true)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-g.done:
	case <-timer.C:
		cut = true
		g.cutting.Store(true)
	}
	g.cancel()
	<-g.done
	return cut
}

// client is one client. It belongs to one goroutine.
type client struct {
	g     *Generator
	tag   uint64 // of the last request
	head  string // of each request
	req   *answer.Request
	check *answer.Check
	out   []byte
	nc    net.Conn // nil without a connection
	r     *bufio.Reader
	unset func() bool // ends the watch of the context that closes nc

	start, last time.Duration // of the request, and its last token
	tokens      int
}

func newClient(g *Generator, i int) *client {
	c := &client{g: g, tag: uint64(i) << 32, req: answer.NewRequest(g.plan.Shape)}
	c.head = "POST " + answer.Path + " HTTP/1.1\r\nHost: " + g.plan.Address +
		"\r\nUser-Agent: pdmesh-bench\r\nAccept: */*\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(c.req.Body)) + "\r\n\r\n"
	c.check = answer.NewCheck(answer.New(g.plan.Shape.Params(c.req.Sum)), c.onToken)
	return c
}

func (c *client) now() time.Duration { return time.Since(c.g.began) }

// run sends requests until the generator ends.
func (c *client) run(ctx context.Context) {
	defer c.disconnect()
	const pauseAfterFailure = 10 * time.Millisecond
	for !c.g.ending.Load() && ctx.Err() == nil {
		c.tag++
		c.start, c.tokens = c.now(), 0
		err := c.exchange(ctx)
		if c.tokens > 0 {
			c.g.open.Add(-1)
		}
		if c.count(err); err != nil {
			c.disconnect()
			sleep.For(ctx, pauseAfterFailure)
		}
	}
}

// count counts the response to the last request.
func (c *client) count(err error) {
	t := c.g.tally.Load()
	switch {
	case err == nil:
		t.Right.Add(1)
		if !c.g.plan.Shape.Stream {
			t.TTFT.Record(c.now() - c.start)
			t.Tokens.Add(uint64(c.g.plan.Shape.Tokens))
		}
	case errors.Is(err, answer.ErrWrong):
		t.fail(&t.Wrong, err)
	case !c.g.cutting.Load():
		t.fail(&t.Failed, err)
	}
}

// onToken is called for each token of a stream.
func (c *client) onToken() {
	now, t := c.now(), c.g.tally.Load()
	t.Tokens.Add(1)
	if c.tokens == 0 {
		t.TTFT.Record(now - c.start)
		c.g.open.Add(1)
	} else {
		t.ITL.Record(now - c.last)
	}
	c.last = now
	c.tokens++
}

// exchange sends a request and checks its response.
func (c *client) exchange(ctx context.Context) error {
	if err := c.connect(ctx); err != nil {
		return err
	}
	c.req.SetTag(c.tag)
	c.out = append(append(c.out[:0], c.head...), c.req.Body...)
	if _, err := c.nc.Write(c.out); err != nil {
		return err
	}
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		const enough = 300
		text, _ := io.ReadAll(io.LimitReader(res.Body, enough))
		return fmt.Errorf("status %d: %s", res.StatusCode, text)
	}
	c.check.Begin(c.tag)
	if _, err := io.CopyBuffer(struct{ io.Writer }{c.check}, struct{ io.Reader }{res.Body}, c.out[:cap(c.out)]); err != nil {
		return err
	}
	if res.Close {
		c.disconnect()
	}
	return c.check.End()
}

// connect connects if there is no connection.
func (c *client) connect(ctx context.Context) error {
	if c.nc != nil {
		return nil
	}
	d := net.Dialer{Timeout: 10 * time.Second}
	nc, err := d.DialContext(ctx, "tcp", c.g.plan.Address)
	if err != nil {
		return err
	}
	c.nc, c.r = nc, bufio.NewReader(nc)
	c.unset = context.AfterFunc(ctx, func() { nc.Close() })
	return nil
}

func (c *client) disconnect() {
	if c.nc != nil {
		c.unset()
		c.nc.Close()
		c.nc = nil
	}
}
