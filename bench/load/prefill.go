package load

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pdmesh/pdmesh/bench/answer"
)

// prefillLeg is a connection for first legs. Workers share them: a stream that
// runs needs none.
type prefillLeg struct {
	*leg
	kept *keepingCheck
}

// prefill does a first leg and appends to b how a second leg's body begins that
// brings its hand-over, nothing if there was none.
func (g *Generator) prefill(ctx context.Context, worker, tag uint64, b []byte) ([]byte, error) {
	l := g.takePrefill(worker)
	defer g.putPrefill(l)
	if err := l.exchange(ctx, tag, nil); err != nil {
		return b, err
	}
	kv, err := l.kept.handover()
	if err != nil || len(kv) == 0 {
		return b, err
	}
	return append(append(append(b, "{"+answer.Handover...), kv...), ','), nil
}

func (g *Generator) takePrefill(worker uint64) *prefillLeg {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.idle); n > 0 {
		l := g.idle[n-1]
		g.idle = g.idle[:n-1]
		return l
	}
	p := &g.plan
	req := answer.NewRequest(p.Shape, true)
	kept := &keepingCheck{WholeCheck: answer.NewWholeCheck(answer.NewWhole(p.Shape.API, 1, req.Len(), req.Sum, true)), lenient: p.Strict}
	l := &prefillLeg{g.newLeg(p.Prefill[worker%uint64(len(p.Prefill))], req, kept), kept}
	g.legs = append(g.legs, l)
	return l
}

func (g *Generator) putPrefill(l *prefillLeg) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle = append(g.idle, l)
}

// cutPrefills closes the connections of all first legs.
func (g *Generator) cutPrefills() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.legs {
		l.cut()
	}
}

// keepingCheck checks a prefill's answer, and returns the hand-over in it.
type keepingCheck struct {
	*answer.WholeCheck
	lenient bool   // the strict simulator's answers are read, not compared
	body    []byte // such an answer
}

func (k *keepingCheck) Begin(tag uint64) {
	k.body = k.body[:0]
	k.WholeCheck.Begin(tag)
}

func (k *keepingCheck) Write(p []byte) error {
	if k.lenient {
		k.body = append(k.body, p...)
		return nil
	}
	return k.WholeCheck.Write(p)
}

func (k *keepingCheck) End() error {
	if k.lenient {
		return nil
	}
	return k.WholeCheck.End()
}

// handover is the KV cache's description, nothing from engines that share one.
func (k *keepingCheck) handover() ([]byte, error) {
	if !k.lenient {
		return k.KV(), nil // what came is the same, to the last byte
	}
	var v struct {
		KV json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(k.body, &v); err != nil {
		return nil, fmt.Errorf("%w: the prefill's answer %.160q: %w", answer.ErrWrong, k.body, err)
	}
	if string(v.KV) == "null" {
		return nil, nil
	}
	return v.KV, nil
}
