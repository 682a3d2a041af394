package forward_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

// lmcacheRanks is the tensor-parallel size of a rig's LMCache engines.
const lmcacheRanks = 2

// listenForNotices binds the socket that the rig's engines notify, and returns its address.
func (r *rig) listenForNotices() string {
	r.t.Helper()
	if r.receiver == nil {
		r.inbox = lmcache.NewInbox()
		r.receiver = pull(r.t, r.inbox)
	}
	return r.receiver.Addr().String()
}

func pull(t *testing.T, inbox *lmcache.Inbox) *lmcache.Receiver {
	t.Helper()
	receiver, err := lmcache.Listen(t.Context(), "tcp://127.0.0.1:0", inbox, quiet())
	require.NoError(t, err)
	t.Cleanup(receiver.Close)
	return receiver
}

// lmcachePorts are the ports in the record of an LMCache decode instance, nil for others.
func lmcachePorts(s *fakevllm.Server) map[string][]int {
	if ports := s.AllocPorts(); ports != nil {
		return map[string][]int{instance.PortLMCacheInit: ports, instance.PortLMCacheAlloc: ports}
	}
	return nil
}

// notifiedRig is a fleet of LMCache engines whose legs the test answers, and whose
// notifications it sends.
type notifiedRig struct {
	t     *testing.T
	rig   *rig
	legs  chan *notifiedLeg
	waits *countedWaits
	ranks []*zmqpeer.Sender // of the one process that represents all prefill engines
	P, D  []*instance.Instance
}

// countedWaits counts the waits for notifications that are over.
type countedWaits struct {
	flow.Notifications

	over atomic.Int64
}

func (c *countedWaits) Await(ctx context.Context, in *instance.Instance, id string, ranks int) error {
	defer c.over.Add(1)
	return c.Notifications.Await(ctx, in, id, ranks) //nolint:wrapcheck // of the wait itself
}

// notifiedLeg is one leg as an engine got it.
type notifiedLeg struct {
	role    instance.Role
	address string
	spec    struct {
		ID    string `json:"req_id"`
		Host  string `json:"receiver_host"`
		Init  []int  `json:"receiver_init_port"`
		Alloc []int  `json:"receiver_alloc_port"`
	}
	tag    string
	body   []byte
	left   <-chan struct{} // closed when the proxy has aborted the leg
	answer chan func(http.ResponseWriter)
}

func (l *notifiedLeg) reply(f func(http.ResponseWriter)) { l.answer <- f }

// startNotified starts engines with the given number of ranks each. Their notifications go to the proxy.
func startNotified(t *testing.T, prefills, decodes, ranks int, tune func(*forward.Options)) *notifiedRig {
	t.Helper()
	w := &notifiedRig{t: t, legs: make(chan *notifiedLeg, 64)}
	inbox := lmcache.NewInbox()
	receiver := pull(t, inbox)
	w.rig = start(t, fakevllm.Plain, 0, 0, func(o *forward.Options) {
		w.waits = &countedWaits{Notifications: &lmcache.Waiter{Own: inbox, HTTP: http.DefaultClient}}
		o.Notifications = w.waits
		if tune != nil {
			tune(o)
		}
	})
	for range ranks {
		w.ranks = append(w.ranks, push(t, receiver))
	}
	ports := make([]int, ranks)
	for i := range ports {
		ports[i] = 7300 + i
	}
	for i := range prefills + decodes {
		role := instance.Prefill
		if i >= prefills {
			role = instance.Decode
		}
		one := handlerEngine(t, role, func(rw http.ResponseWriter, r *http.Request) { w.serve(role, rw, r) })
		one.Record.Connector = string(fakevllm.LMCache)
		if role == instance.Decode {
			one.Record.Ports = map[string][]int{instance.PortLMCacheInit: ports, instance.PortLMCacheAlloc: ports}
			w.D = append(w.D, one)
			continue
		}
		one.Record.TPSize = ranks
		w.P = append(w.P, one)
	}
	w.join()
	return w
}

func push(t *testing.T, to *lmcache.Receiver) *zmqpeer.Sender {
	t.Helper()
	s, err := zmqpeer.NewSender(zmq.Push, "tcp://"+to.Addr().String())
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func (w *notifiedRig) join() { w.rig.members.set(append(slices.Clone(w.P), w.D...)...) }

func (w *notifiedRig) serve(role instance.Role, rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	assert.NoError(w.t, err)
	l := &notifiedLeg{role: role, address: r.Host, body: body, left: r.Context().Done(), answer: make(chan func(http.ResponseWriter), 1)}
	var said struct {
		KV map[string]json.RawMessage `json:"kv_transfer_params"`
	}
	assert.NoError(w.t, json.Unmarshal(body, &said), "a leg that is no JSON: %q", body)
	if spec := said.KV["disagg_spec"]; spec != nil && json.Unmarshal(spec, &l.spec) != nil {
		w.t.Errorf("disagg_spec: %s", spec)
	}
	l.tag = string(said.KV["lmcache.tag.pdmesh"])
	w.legs <- l
	select {
	case f := <-l.answer:
		f(rw)
	case <-r.Context().Done():
	}
}

// leg waits for the next leg, which must be for the given role.
func (w *notifiedRig) leg(role instance.Role) *notifiedLeg {
	w.t.Helper()
	l := await(w.t, "a "+string(role)+" leg", w.legs)
	require.Equal(w.t, role, l.role, "a %s leg came where one for %s was due: %s", l.role, role, l.body)
	return l
}

// roundTrip sends another request and waits until it has ended. By then the proxy has handled everything that
// it had received before.
func (w *notifiedRig) roundTrip() {
	w.t.Helper()
	got := w.begin(w.t.Context(), chatBody(true, ""))
	p := w.leg(instance.Prefill)
	w.notifyAll(p)
	p.reply(ok)
	d := w.leg(instance.Decode)
	require.Equal(w.t, p.tag, d.tag, "decode was sent for %s, due was %s", d.tag, p.tag)
	d.reply(streams)
	w.checkServed(got)
}

// noLeg checks that no leg has come.
func (w *notifiedRig) noLeg(after string) {
	w.t.Helper()
	select {
	case l := <-w.legs:
		w.t.Fatalf("a %s leg after %s", l.role, after)
	default:
	}
}

// notify has a rank notify that an attempt's chunks have arrived.
func (w *notifiedRig) notify(rank int, id string) {
	w.t.Helper()
	require.NoError(w.t, w.ranks[rank].Send(w.t.Context(), connector.Notification(id)))
}

// notifyAll has each rank notify, and waits until the proxy has handled the notifications: after prefill's
// answer, the proxy would wait only briefly.
func (w *notifiedRig) notifyAll(prefill *notifiedLeg) {
	w.t.Helper()
	over := w.waits.over.Load()
	for rank := range w.ranks {
		w.notify(rank, prefill.spec.ID)
	}
	eventually(w.t, "the wait for the notifications is over", func() bool { return w.waits.over.Load() > over })
}

// begin sends a request and returns the channel of its answer.
func (w *notifiedRig) begin(ctx context.Context, body string) <-chan answer {
	return async(func() answer { return w.rig.postCtx(ctx, "/v1/chat/completions", body) })
}

// checkServed checks that an answer equals decode's stream.
func (w *notifiedRig) checkServed(got <-chan answer) forward.Entry {
	w.t.Helper()
	a := await(w.t, "the answer", got)
	a.require(w.t, http.StatusOK, "hello", "[DONE]")
	return w.rig.entry()
}
