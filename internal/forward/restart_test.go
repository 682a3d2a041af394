package forward_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// restart restarts a prefill engine at its address. If announced, the membership gets the new record, as from
// its agent.
func (r *rig) restart(s *fakevllm.Server, announced bool) {
	s.Kill()
	if err := s.Restart(context.WithoutCancel(r.t.Context())); err != nil {
		r.t.Error(err)
		return
	}
	r.up.Forget(s.Address()) // as health does when it has refused connections
	if !announced {
		return
	}
	r.members.changeAt(s, func(in *instance.Instance) {
		*in = *instanceOf(in.Role, s, fakevllm.Mode(in.Record.Connector))
		in.Record.ID += "-next"
	})
}

// eachSingleUseDialect runs a test for every dialect of the registry whose KV transfer only one
// decode instance may read.
func eachSingleUseDialect(t *testing.T, f func(t *testing.T, c connector.Dialect)) {
	t.Helper()
	for _, name := range connector.Names() {
		c, err := connector.New(name)
		require.NoError(t, err)
		if c.SharesPool() {
			continue // the pool outlives its engines
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, c)
		})
	}
}

// afterRestart checks that the client's answer is correct, and that decode read only blocks of the new
// incarnation that were computed for it.
func (r *rig) afterRestart(a answer, body string) {
	r.t.Helper()
	r.checkComplete(a, true, body)
	r.checkAnswers()
}

// The prefill engine restarts after its answer and before the decode leg begins.
func TestRestartBetweenTheLegs(t *testing.T) {
	t.Parallel()
	eachSingleUseDialect(t, func(t *testing.T, c connector.Dialect) {
		if c.Flow() != connector.Sequential {
			t.Skip("the legs overlap: TestRestartWhileDecodeWaits")
		}
		r := start(t, fakevllm.Mode(c.Name()), 1, 1, nil)
		r.rec.onHanded = func() { r.restart(r.P[0], true) }
		body := chatBody(true, "")
		r.afterRestart(r.post(chatPath, body), body)
		if e := r.entry(); e.DecodeOnly != "" || r.rec.retried() != "prefill/gone" {
			t.Errorf("decode-only %q, retried %q", e.DecodeOnly, r.rec.retried())
		}
		d := r.D[0].Counters()
		if d.TransfersLoaded != 1 || d.TransfersRefused != 0 || d.LocalPrefills != 0 || legs(r.D) != 1 || legs(r.P) != 2 {
			t.Errorf("%d prefills, %d decodes: %+v", legs(r.P), legs(r.D), d)
		}
	})
}

// The first decode instance cannot be reached, and the prefill engine restarts before the KV transfer goes to
// the second one.
func TestRestartBeforeTheSecondDecode(t *testing.T) {
	t.Parallel()
	eachSingleUseDialect(t, func(t *testing.T, c connector.Dialect) {
		if c.Flow() != connector.Sequential {
			t.Skip("a decode that fails ends the pair")
		}
		r := start(t, fakevllm.Mode(c.Name()), 1, 2, nil)
		r.D[0].Kill()
		r.rec.onRetry = func() { r.restart(r.P[0], true) }
		body := chatBody(true, "")
		r.afterRestart(r.post(chatPath, body), body)
		d := r.D[1].Counters()
		assert.True(t, d.TransfersLoaded == 1 && d.TransfersRefused == 0 && d.LocalPrefills == 0 && legs(r.P) == 2,
			"%d prefills: %+v", legs(r.P), d)
	})
}

// The prefill engine restarts after decode got its leg and before it read the KV cache: the leg is called
// off, and decode is not blamed.
func TestRestartWhileDecodeWaits(t *testing.T) {
	t.Parallel()
	eachSingleUseDialect(t, func(t *testing.T, c connector.Dialect) {
		if c.Flow() == connector.Notified {
			t.Skip("decode has the blocks before its leg begins: TestNotifiedInstanceRemoved")
		}
		answered := make(chan struct{})
		ended := sync.OnceFunc(func() { close(answered) })
		r := start(t, fakevllm.Mode(c.Name()), 1, 1, func(o *forward.Options) {
			o.Upstream = &hookedClient{Client: o.Upstream, role: instance.Prefill, after: func(_ context.Context, _ []byte, err error) {
				if errors.Is(err, io.EOF) {
					ended()
				}
			}}
		})
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultHang, At: fakevllm.BeforeRead, Times: 1})
		body := chatBody(true, "")
		got := async(func() answer { return r.post("/v1/chat/completions", body) })
		await(t, "prefill's answer", answered)
		eventually(t, "decode has its leg", func() bool { return r.D[0].Counters().Faults == 1 })
		r.restart(r.P[0], true)
		r.afterRestart(await(t, "the answer", got), body)
		if e := r.entry(); e.DecodeOnly != "" || r.rec.retried() != "prefill/gone" || e.Prefill != r.P[0].Address() {
			t.Errorf("%+v, retried %q", e, r.rec.retried())
		}
		d := r.D[0].Counters()
		assert.True(t, d.TransfersLoaded == 1 && d.TransfersRefused == 0 && d.LocalPrefills == 0, "%+v", d)
	})
}

// The prefill engine restarts after decode's answer has arrived and before any of it is passed on: decode may
// have read blocks of the new incarnation.
func TestRestartBeforeTheCommit(t *testing.T) {
	t.Parallel()
	eachSingleUseDialect(t, func(t *testing.T, c connector.Dialect) {
		if c.Flow() != connector.Sequential {
			t.Skip("decode has the blocks when its answer begins")
		}
		for _, stream := range []bool{false, true} {
			var r *rig
			arrived := sync.OnceFunc(func() { r.restart(r.P[0], true) })
			r = start(t, fakevllm.Mode(c.Name()), 1, 1, func(o *forward.Options) {
				o.Upstream = &hookedClient{Client: o.Upstream, role: instance.Decode, after: func(_ context.Context, read []byte, err error) {
					if errors.Is(err, io.EOF) || stream && len(read) > 0 {
						arrived()
					}
				}}
			})
			body := chatBody(stream, "")
			a := r.post("/v1/chat/completions", body)
			r.checkComplete(a, true, body)
			assert.True(t, legs(r.P) == 2 && r.rec.retried() == "prefill/gone",
				"stream %v: %d prefills, retried %q", stream, legs(r.P), r.rec.retried())
		}
	})
}

// The membership does not know the new incarnation yet. Engines that identify each other by an incarnation's
// id refuse the KV transfer, and the request gets a new one.
func TestUnannouncedRestart(t *testing.T) {
	t.Parallel()
	eachSingleUseDialect(t, func(t *testing.T, c connector.Dialect) {
		switch {
		case c.Flow() != connector.Sequential:
			t.Skip("decode is called off when the connection to prefill ends")
		case c.NeedsPrefill():
			t.Skip("its engines have the same name in each incarnation: the bridge reports restarts (docs/connectors/moriio.md)")
		}
		r := start(t, fakevllm.Mode(c.Name()), 1, 1, nil)
		r.rec.onHanded = func() { r.restart(r.P[0], false) }
		body := chatBody(true, "")
		r.afterRestart(r.post(chatPath, body), body)
		d := r.D[0].Counters()
		assert.True(t, d.TransfersRefused == 1 && d.TransfersLoaded+d.LocalPrefills == 1, "%+v", d)
	})
}
