package load

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
)

// errLeft ends an answer that the worker leaves on purpose.
var errLeft = errors.New("left on purpose")

// worker is one client: one connection, or two when it does both hops itself.
type worker struct {
	g      *Generator
	id     uint64
	seq    uint64
	rng    *rand.Rand
	decode *leg
	kv     []byte

	start, last time.Duration
	tokens      int
	leaveAt     int  // -1: stays to the end
	opening     bool // holds one of the generator's places
}

func (g *Generator) newWorker(i int) (*worker, error) {
	p := &g.plan
	w := &worker{g: g, id: uint64(i), rng: rand.New(rand.NewPCG(p.Seed, uint64(i))), leaveAt: -1}
	req := answer.NewRequest(p.Shape, false)
	want, err := w.checker(req)
	if err != nil {
		return nil, err
	}
	w.decode = g.newLeg(p.Addresses[i%len(p.Addresses)], req, want)
	return w, nil
}

func (w *worker) checker(req *answer.Request) (checker, error) {
	s := req.Shape
	switch {
	case w.g.plan.Strict:
		return newTextCheck(req, w.onToken)
	case s.Stream:
		return answer.NewStreamCheck(answer.NewStream(s.API, s.Tokens, req.Len(), req.Sum, true), w.onToken), nil
	default:
		return answer.NewWholeCheck(answer.NewWhole(s.API, s.Tokens, req.Len(), req.Sum, false)), nil
	}
}

// onToken is called for every token that arrives.
func (w *worker) onToken() {
	now := w.g.now()
	t := w.g.tally.Load()
	t.Tokens.Add(1)
	if w.tokens == 0 {
		t.TTFT.Record(now - w.start)
		w.g.open.Add(1)
		w.opened()
	} else {
		t.ITL.Record(now - w.last)
	}
	w.last = now
	w.tokens++
}

// opened lets the next one open.
func (w *worker) opened() {
	if w.opening {
		w.opening = false
		<-w.g.opening
	}
}

// one sends one request that should have been sent at start, and counts what
// came of it. It says whether things went as they should.
func (w *worker) one(ctx context.Context, start time.Duration) bool {
	g := w.g
	w.seq++
	w.start, w.tokens, w.leaveAt = start, 0, -1
	if g.plan.Leave > 0 && w.rng.Float64() < g.plan.Leave {
		w.leaveAt = w.rng.IntN(g.plan.Shape.Tokens)
	}
	g.running.Add(1)
	err := w.hops(ctx, w.id<<32|w.seq)
	g.running.Add(-1)
	w.opened()
	if w.tokens > 0 {
		g.open.Add(-1)
	}
	t := g.tally.Load()
	switch {
	case err == nil:
		took := g.now() - start
		t.Right.Add(1)
		t.Total.Record(took)
		if !g.plan.Shape.Stream {
			t.TTFT.Record(took)
			t.Tokens.Add(uint64(g.plan.Shape.Tokens))
		}
	case errors.Is(err, answer.ErrWrong):
		t.problem(&t.Wrong, err)
	case errors.Is(err, errLeft), g.cutting.Load():
		t.Left.Add(1)
		return true
	case errors.Is(err, errBroken):
		t.problem(&t.Broken, err)
	default: // another status too
		t.problem(&t.Failed, err)
	}
	return err == nil
}

func (w *worker) hops(ctx context.Context, tag uint64) error {
	w.kv = w.kv[:0]
	if len(w.g.plan.Prefill) > 0 {
		var err error
		if w.kv, err = w.g.prefill(ctx, w.id, tag, w.kv); err != nil {
			return err
		}
	}
	if w.leaveAt >= 0 {
		return w.leave(ctx, tag)
	}
	return w.decode.exchange(ctx, tag, w.kv)
}

// leave is an exchange whose client goes away at a token, or, before the first,
// right after it has sent the request.
func (w *worker) leave(ctx context.Context, tag uint64) error {
	l := w.decode
	defer l.drop()
	if err := l.connect(ctx); err != nil {
		return err
	}
	if err := l.say(tag, w.kv); err != nil {
		return errLeft // an idle connection that had ended; it would have been left anyway
	}
	if w.leaveAt == 0 || !w.g.plan.Shape.Stream {
		_ = l.nc.Flush() // as above
		return errLeft
	}
	whole := l.want
	l.want = leavingCheck{whole, w}
	defer func() { l.want = whole }()
	err := l.receive(tag)
	if err != nil && !l.fed && !errors.Is(err, answer.ErrWrong) {
		if _, ok := errors.AsType[*StatusError](err); !ok {
			return errLeft // as above
		}
	}
	return err
}

// leavingCheck ends the answer at the token at which its worker leaves.
type leavingCheck struct {
	checker
	w *worker
}

func (c leavingCheck) Write(p []byte) error {
	if err := c.checker.Write(p); err != nil {
		return err
	}
	if c.w.tokens >= c.w.leaveAt {
		return errLeft
	}
	return nil
}
