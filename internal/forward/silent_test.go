package forward_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// hangDecode makes the only decode instance hang, probes included.
func hangDecode(t *testing.T, r *rig) {
	t.Helper()
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultHang, Path: "/health"})
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultHang})
}

// A leg whose engine is silent is called off before the lease of its KV transfer ends: later, the engine
// would read blocks of other requests. The request gets a new KV transfer, from the same prefill instance,
// and for the same decode instance if there is no other.
func TestKVTransfer_EndsWhileDecodeSilent(t *testing.T) {
	t.Parallel()
	eachAPI(t, streamed(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.KVBudget = 2500 * time.Millisecond })
		hangDecode(t, r)
		done := async(func() answer { return r.postScenario(q) })
		eventually(t, "the leg is sent again", func() bool { return strings.Contains(r.rec.retried(), string(leg.TransferExpired)) })
		r.D[0].ClearFaults()
		r.checkWhole(q, <-done)
		e := r.entry()
		assert.True(t, e.DecodeOnly == "" && e.Decode == r.D[0].Address() && e.Outcome == relay.OutcomeOK, "entry %+v", e)
		n := legs(r.P)
		assert.True(t, n >= 2, "%d prefills", n)
		r.rec.mu.Lock()
		defer r.rec.mu.Unlock()
		assert.True(t, len(r.rec.spent) != 0 && r.rec.spent[0] == leg.TransferExpired,
			"spent KV transfers: %v", r.rec.spent)
		if _, ejected := r.tracker.Ejected(key(instance.Decode, r.D[0])); ejected {
			t.Error("the only decode instance was ejected")
		}
	})
}

// If the only decode instance never answers, requests end with 504 at their own limit. So do requests that do
// not stream, whose limit for a whole answer is far longer.
func TestOnlyDecode_Silent(t *testing.T) {
	t.Parallel()
	eachSequential(t, func(t *testing.T, mode fakevllm.Mode, q scenario) {
		r := start(t, mode, 1, 1, func(o *forward.Options) { o.FirstByte, o.NonStream = 3*time.Second, time.Hour })
		hangDecode(t, r)
		r.checkRefused(q, r.postScenario(q), http.StatusGatewayTimeout, "did not answer in time")
		e := r.entry()
		assert.True(t, e.Failure == leg.FirstByteTimeout && e.Failed == 1, "entry %+v", e)
	})
}

// lateConnect is an upstream client whose first connections to decode instances time out, as
// on a busy machine.
type lateConnect struct {
	upstream.Client
	left atomic.Int64
}

func (c *lateConnect) Do(ctx context.Context, r *upstream.Request) (*upstream.Response, error) {
	if r.Instance.Role == instance.Decode && c.left.Add(-1) >= 0 {
		return nil, &upstream.Error{Stage: upstream.StageNotConnected, Address: r.Instance.Address, Err: os.ErrDeadlineExceeded}
	}
	return c.Client.Do(ctx, r)
}

// A connect timeout is not a refusal: the only instance of a role is tried again.
func TestOnlyDecode_ConnectTimeout(t *testing.T) {
	t.Parallel()
	eachSequential(t, func(t *testing.T, mode fakevllm.Mode, q scenario) {
		r := start(t, mode, 1, 1, func(o *forward.Options) {
			c := &lateConnect{Client: o.Upstream}
			c.left.Store(1)
			o.Upstream = c
		})
		r.checkServed(q)
		if e := r.entry(); e.Failed != 1 || r.rec.retried() != "decode/connect_timeout" {
			t.Errorf("retried %q, entry %+v", r.rec.retried(), e)
		}
	})
}
