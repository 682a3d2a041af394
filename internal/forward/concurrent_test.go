package forward_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// pairParams has the fields that the legs of a concurrent pair carry: the kv_transfer_params of vLLM's
// Mooncake and MoRI-IO connectors.
type pairParams struct {
	DoRemoteDecode  bool   `json:"do_remote_decode"`
	DoRemotePrefill bool   `json:"do_remote_prefill"`
	TransferID      string `json:"transfer_id"`
	Bootstrap       string `json:"remote_bootstrap_addr"`
	EngineID        string `json:"remote_engine_id"`
	NotifyPort      int    `json:"remote_notify_port"` // MoRI-IO only, like TPSize
	TPSize          int    `json:"remote_tp_size"`
}

// pairLeg is one leg as an engine of a concurrentRig got it.
type pairLeg struct {
	pairParams
	engine *pairEngine
	id     string // X-Request-Id
	rank   string // X-data-parallel-rank
	body   []byte
	left   <-chan struct{} // closed when the proxy has aborted the leg
}

// pairEngine is an engine for which the test answers each leg.
type pairEngine struct {
	role        instance.Role
	address     string
	incarnation string
}

// concurrentRig is a fleet of engines whose legs the test answers: each leg is sent to legs,
// and waits for the test's answer.
type concurrentRig struct {
	t       *testing.T
	dialect string
	q       scenario // request to send; a streamed chat by default
	rig     *rig
	legs    chan *pendingLeg
	P, D    []*pairEngine
}

// pendingLeg is a leg that waits for the test to answer it.
type pendingLeg struct {
	pairLeg
	answer chan func(http.ResponseWriter)
}

// reply has the engine answer with f.
func (p *pendingLeg) reply(f func(http.ResponseWriter)) { p.answer <- f }

const (
	prefillAnswer = `{"id":"p","choices":[{"index":0,"finish_reason":"length"}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}`
	pairEvents    = "data: {\"id\":\"d\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}]}\n\n" +
		"data: {\"id\":\"d\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\n"
	pairRest = "data: {\"id\":\"d\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":9}}}\n\n" +
		"data: [DONE]\n\n"
)

// ok answers a prefill leg.
func ok(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, prefillAnswer)
}

// fails answers with a status.
func fails(status int) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"error":{"message":"no","type":"T","param":null,"code":%d}}`, status)
	}
}

// breaks ends the connection without an answer.
func breaks(http.ResponseWriter) { panic(http.ErrAbortHandler) }

// streams answers a decode leg of a chat.
func streams(w http.ResponseWriter) { streamed200(w, pairEvents+pairRest) }

func streamed200(w http.ResponseWriter, events string) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, events)
}

// The same answers in the format of /v1/responses.
const (
	responsesAnswer = `{"id":"p","output":[],"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":0},"output_tokens":1}}`
	responsesStream = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n" +
		"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hello\"}\n\n" +
		"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":9,\"input_tokens_details\":{\"cached_tokens\":9,\"cache_write_tokens\":0}}}}\n\n"
)

// eachPair runs a scenario over the APIs that a concurrent pair carries.
func eachPair(t *testing.T, f func(t *testing.T, q scenario)) {
	t.Helper()
	for _, path := range []string{chatPath, responsesPath} {
		t.Run(path[4:], func(t *testing.T) {
			t.Parallel()
			f(t, scenario{path, true})
		})
	}
}

// prefills and streams answer the legs of the rig's requests.
func (m *concurrentRig) prefills(w http.ResponseWriter) {
	if m.q.path == chatPath {
		ok(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, responsesAnswer)
}

func (m *concurrentRig) streams(w http.ResponseWriter) {
	if m.q.path == chatPath {
		streams(w)
		return
	}
	streamed200(w, responsesStream)
}

// eachConcurrentDialect runs a test for every dialect whose legs run at once.
func eachConcurrentDialect(t *testing.T, test func(t *testing.T, dialect string)) {
	t.Helper()
	for _, dialect := range []string{"mooncake", "moriio_write"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			test(t, dialect)
		})
	}
}

// startConcurrent starts prefill and decode engines of a concurrent connector.
func startConcurrent(t *testing.T, dialect string, prefills, decodes int, tune func(*forward.Options)) *concurrentRig {
	t.Helper()
	return startConcurrentTuned(t, dialect, prefills, decodes, tuning{forward: tune})
}

// startConcurrentTuned is startConcurrent with other options of the rig, too.
func startConcurrentTuned(t *testing.T, dialect string, prefills, decodes int, tune tuning) *concurrentRig {
	t.Helper()
	m := &concurrentRig{t: t, dialect: dialect, q: scenario{chatPath, true}, rig: startTuned(t, "plain", 0, 0, tune), legs: make(chan *pendingLeg, 16)}
	for i := range prefills + decodes {
		e := &pairEngine{role: instance.Prefill, incarnation: "1"}
		if i >= prefills {
			e.role = instance.Decode
		}
		e.address = handlerEngine(t, e.role, func(w http.ResponseWriter, r *http.Request) { m.serve(e, w, r) }).Address
		if e.role == instance.Prefill {
			m.P = append(m.P, e)
		} else {
			m.D = append(m.D, e)
		}
	}
	m.join()
	return m
}

// join makes the engines, in their current incarnations, the membership.
func (m *concurrentRig) join() {
	var list []*instance.Instance
	for _, e := range append(append([]*pairEngine{}, m.P...), m.D...) {
		one := instanceAt(e.role, e.address, fakevllm.Mode(m.dialect))
		one.Record.ID = e.incarnation
		switch {
		case m.dialect == "moriio_write":
			one.Record.ZMQAddress, one.Record.TPSize = zmqAddress(e), 4
		case e.role == instance.Prefill:
			one.Record.Ports, one.Record.EngineIDs = map[string][]int{"bootstrap": {8998}}, map[string]string{"0": e.address + "#" + e.incarnation}
		}
		list = append(list, one)
	}
	m.rig.members.set(list...)
}

func (m *concurrentRig) serve(e *pairEngine, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	assert.NoError(m.t, err)
	var said struct {
		KV pairParams `json:"kv_transfer_params"`
	}
	assert.NoError(m.t, json.Unmarshal(body, &said), "a leg that is no JSON: %q", body)
	p := &pendingLeg{
		pairLeg: pairLeg{said.KV, e, r.Header.Get("X-Request-Id"), r.Header.Get("X-Data-Parallel-Rank"), body, r.Context().Done()},
		answer:  make(chan func(http.ResponseWriter), 1),
	}
	m.legs <- p
	select {
	case f := <-p.answer:
		f(w)
	case <-r.Context().Done():
	}
}

// await receives from a channel, and fails the test if nothing comes.
func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	late := time.NewTimer(waitLimit)
	defer late.Stop()
	select {
	case v := <-c:
		return v
	case <-late.C:
		t.Fatalf("waited in vain for %s", what)
		panic("not reached")
	}
}

// pair waits for the two legs of one attempt.
func (m *concurrentRig) pair() (prefill, decode *pendingLeg) {
	m.t.Helper()
	for range 2 {
		if l := await(m.t, "a leg", m.legs); l.engine.role == instance.Prefill {
			prefill = l
		} else {
			decode = l
		}
	}
	require.True(m.t, prefill != nil && decode != nil, "two legs of one role")
	switch {
	case !prefill.DoRemoteDecode || prefill.DoRemotePrefill || !decode.DoRemotePrefill || decode.DoRemoteDecode:
		m.t.Fatalf("roles: %+v, %+v", prefill.pairParams, decode.pairParams)
	case prefill.TransferID == "" || prefill.TransferID != decode.TransferID || prefill.id != decode.id:
		m.t.Fatalf("the legs are not linked: %+v, %+v", prefill.pairLeg, decode.pairLeg)
	case m.dialect == "moriio_write":
		m.checkMoRIIO(prefill, decode)
	case decode.EngineID != prefill.engine.address+"#"+prefill.engine.incarnation || prefill.rank != "0" || decode.rank != "":
		m.t.Fatalf("engine %q, ranks %q and %q", decode.EngineID, prefill.rank, decode.rank)
	}
	return prefill, decode
}

// zmqAddress returns the ZMQ address of an engine, which contains its incarnation.
func zmqAddress(e *pairEngine) string {
	_, port, _ := strings.Cut(e.address, ":")
	return "host:127.0.0.1,handshake:6301" + ",notify:" + port
}

// checkMoRIIO checks that the legs of a MoRI-IO pair name each other.
func (m *concurrentRig) checkMoRIIO(prefill, decode *pendingLeg) {
	m.t.Helper()
	want := "___prefill_addr_" + zmqAddress(prefill.engine) + "___decode_addr_" + zmqAddress(decode.engine) + "_"
	nonce, ok := strings.CutPrefix(prefill.id, want)
	require.True(m.t, ok && len(nonce) == 32 && prefill.TransferID == "tx-"+nonce,
		"id %q, transfer %q", prefill.id, prefill.TransferID)
	if prefill.NotifyPort != portOf(decode.engine) || decode.NotifyPort != portOf(prefill.engine) || prefill.TPSize != 4 || decode.TPSize != 4 {
		m.t.Fatalf("partners: %+v, %+v", prefill.pairParams, decode.pairParams)
	}
}

func portOf(e *pairEngine) int {
	_, port, _ := strings.Cut(e.address, ":")
	n, _ := strconv.Atoi(port)
	return n
}

// begin sends a request and returns the channel of its answer.
func (m *concurrentRig) begin(ctx context.Context, body string) <-chan answer {
	return async(func() answer { return m.rig.postCtx(ctx, m.q.path, body) })
}

// checkServed checks that an answer equals decode's stream.
func (m *concurrentRig) checkServed(got <-chan answer) forward.Entry {
	m.t.Helper()
	a := await(m.t, "the answer", got)
	require.True(m.t, a.status == http.StatusOK && strings.Contains(string(a.body), "hello") && m.q.ends(string(a.body)),
		"%d %s", a.status, a.body)
	assert.Contains(m.t, string(a.body), `"cached_tokens":4`)
	return m.rig.entry()
}

// Both legs run at once: neither waits for the other's answer.
func TestConcurrentPair(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		m := startConcurrent(t, dialect, 1, 1, nil)
		for _, prefillFirst := range []bool{true, false} {
			got := m.begin(t.Context(), chatBody(true, ""))
			p, d := m.pair()
			if prefillFirst {
				p.reply(ok)
				d.reply(streams)
			} else { // prefill's answer is still in transit when decode's is complete
				d.reply(streams)
				p.reply(ok)
			}
			if e := m.checkServed(got); e.Prefill != m.P[0].address || e.Decode != m.D[0].address || e.DecodeOnly != "" || e.Failed != 0 {
				t.Errorf("%+v", e)
			}
		}
		got := m.begin(t.Context(), chatBody(false, ""))
		p, d := m.pair()
		p.reply(ok)
		d.reply(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, strings.ReplaceAll(prefillAnswer, `"cached_tokens":4`, `"cached_tokens":9`))
		})
		a := await(t, "the answer", got)
		assert.True(t, a.status == http.StatusOK && string(a.body) == prefillAnswer, "%d %s", a.status, a.body)
		m.rig.entry()
	})
}

// A prefill instance that failed gets its strike when decode begins to answer, if another instance has
// computed the prompt. The stream may last for hours.
func TestConcurrentStrike_BeforeStreamEnds(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		m := startConcurrentTuned(t, dialect, 2, 1, tuning{
			forward: func(o *forward.Options) { o.Idle = 2 * waitLimit },
			health:  func(o *health.Options) { o.MaxFailures, o.Ejection = 1, waitLimit },
		})
		got := m.begin(t.Context(), chatBody(true, ""))
		p, d := m.pair()
		p.reply(fails(500))
		await(t, "the abort of decode", d.left)
		again, next := m.pair()
		again.reply(ok)
		eventually(t, "the proxy has the answer of prefill", func() bool {
			load, _ := m.rig.sched.Loads.Total(instance.Key{Role: instance.Prefill, Address: again.engine.address})
			return load.Waiting == 0
		})
		end := make(chan struct{})
		next.reply(func(w http.ResponseWriter) {
			streamed200(w, pairEvents)
			_ = http.NewResponseController(w).Flush()
			<-end
			_, _ = io.WriteString(w, pairRest)
		})
		eventually(t, "the strike", func() bool {
			return !m.rig.tracker.Available(instance.Key{Role: instance.Prefill, Address: p.engine.address})
		})
		close(end)
		m.checkServed(got)
	})
}

// An engine that loses a reused connection may have the transfer_id of the leg. It must not receive this id
// again: another pair is tried with a new transfer.
func TestConcurrentUsedConnection(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		for _, role := range []instance.Role{instance.Prefill, instance.Decode} {
			t.Run(string(role), func(t *testing.T) {
				t.Parallel()
				m := startConcurrent(t, dialect, 1, 1, nil)
				got := m.begin(t.Context(), chatBody(true, ""))
				p, d := m.pair()
				p.reply(ok)
				d.reply(streams)
				m.checkServed(got)
				got = m.begin(t.Context(), chatBody(true, ""))
				p, d = m.pair()
				if breaking := map[instance.Role]*pendingLeg{instance.Prefill: p, instance.Decode: d}[role]; breaking != nil {
					breaking.reply(breaks)
				}
				again, next := m.pair()
				assert.NotEqual(t, p.TransferID, again.TransferID, "transfer %s was sent again", p.TransferID)
				again.reply(ok)
				next.reply(streams)
				m.checkServed(got)
			})
		}
	})
}

// Prefill's refusal of an invalid request goes to the client, and decode is aborted.
func TestConcurrentPrefillRefuses(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		eachPair(t, func(t *testing.T, q scenario) {
			m := startConcurrent(t, dialect, 2, 1, nil)
			m.q = q
			got := m.begin(t.Context(), q.body(""))
			p, d := m.pair()
			p.reply(fails(400))
			await(t, "the abort of decode", d.left)
			await(t, "the answer", got).check(t, http.StatusBadRequest, `"message":"no"`)
			e := m.rig.entry()
			assert.True(t, e.Outcome == relay.OutcomeClientError && e.Failed == 1, "%+v", e)
		})
	})
}

// If the proxy cannot connect to the prefill instance, it aborts decode and tries another pair.
func TestConcurrentPrefill_Unreachable(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		eachPair(t, func(t *testing.T, q scenario) {
			m := startConcurrent(t, dialect, 1, 1, nil)
			m.q = q
			m.P = append([]*pairEngine{{role: instance.Prefill, address: "127.0.0.1:1", incarnation: "1"}}, m.P...)
			m.join()
			for range 2 { // one of the two requests gets the closed port
				got := m.begin(t.Context(), q.body(""))
				for served := 0; served < 2; {
					l := await(t, "a leg", m.legs)
					switch {
					case l.engine.role == instance.Prefill:
						l.reply(m.prefills)
					case l.EngineID == m.P[0].address+"#1", l.NotifyPort == portOf(m.P[0]): // of MoRI-IO
						await(t, "the abort of decode", l.left)
						continue
					default:
						l.reply(m.streams)
					}
					served++
				}
				m.checkServed(got)
			}
		})
	})
}

// If decode fails, the proxy aborts prefill and tries another pair.
func TestConcurrentDecodeFails(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		errorEvent := func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"error\":{\"message\":\"KV load failed\",\"type\":\"T\",\"param\":null,\"code\":500}}\n\n")
		}
		for name, fail := range map[string]func(http.ResponseWriter){
			"500": fails(500), "503": fails(503), "broken": breaks, "error event": errorEvent,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				eachPair(t, func(t *testing.T, q scenario) {
					m := startConcurrent(t, dialect, 1, 2, nil)
					m.q = q
					got := m.begin(t.Context(), q.body(""))
					p, d := m.pair()
					d.reply(fail)
					await(t, "the abort of prefill", p.left)
					again, next := m.pair()
					assert.True(t, next.engine != d.engine && again.engine == p.engine && again.TransferID != p.TransferID,
						"tried again with %s, %s, transfer %s", again.engine.address, next.engine.address, again.TransferID)
					again.reply(m.prefills)
					next.reply(m.streams)
					e := m.checkServed(got)
					assert.True(t, e.Failed == 1 && e.Decode == next.engine.address, "%+v", e)
				})
			})
		}
	})
}

// If the body of a decode error stalls, the status is enough to try another pair. The proxy does not wait for
// prefill, which still computes.
func TestConcurrentDecodeErrorStalls(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		m := startConcurrent(t, dialect, 2, 2, func(o *forward.Options) {
			o.NonStream, o.Idle, o.Prefill, o.FirstByte = time.Hour, time.Hour, time.Hour, time.Hour
		})
		got := m.begin(t.Context(), chatBody(true, ""))
		prefill, decode := m.pair()
		decode.reply(func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, "{")
			_ = http.NewResponseController(w).Flush()
			<-decode.left
		})
		await(t, "the end of the prefill leg", prefill.left)
		again, next := m.pair()
		again.reply(ok)
		next.reply(streams)
		e := m.checkServed(got)
		assert.Equal(t, 1, e.Failed, "%+v", e)
		assert.Equal(t, "decode/status_5xx", m.rig.rec.retried(), "retried")
	})
}

// An instance that restarts has lost its KV cache: the proxy ends both legs of its pair and tries a new pair,
// which does not count as a retry.
func TestConcurrentInstanceRestarts(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		for _, restarted := range []string{"prefill at work", "prefill that has answered", "decode"} {
			t.Run(restarted, func(t *testing.T) {
				t.Parallel()
				eachPair(t, func(t *testing.T, q scenario) {
					m := startConcurrent(t, dialect, 1, 1, nil)
					m.q = q
					got := m.begin(t.Context(), q.body(""))
					p, d := m.pair()
					switch restarted {
					case "prefill that has answered":
						p.reply(m.prefills)
						await(t, "the end of prefill", p.left)
						m.P[0].incarnation = "2"
					case "prefill at work":
						m.P[0].incarnation = "2"
					case "decode":
						m.D[0].incarnation = "2"
					}
					m.join()
					await(t, "the end of decode", d.left)
					await(t, "the end of prefill", p.left)
					again, next := m.pair()
					again.reply(m.prefills)
					next.reply(m.streams)
					e := m.checkServed(got)
					assert.Equal(t, relay.OutcomeOK, e.Outcome, "%+v", e)
				})
			})
		}
	})
}

// Decode may exceed its own limit while prefill computes.
func TestConcurrentDecodeWaitsForPrefill(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		const limit = 2 * time.Second
		m := startConcurrentTuned(t, dialect, 1, 1, tuning{
			forward: func(o *forward.Options) { o.FirstByte, o.Idle = limit, limit },
			sched:   noProbes,
		})
		got := m.begin(t.Context(), chatBody(true, ""))
		p, d := m.pair()
		work := time.NewTimer(2 * limit)
		<-work.C
		p.reply(ok)
		d.reply(streams)
		m.checkServed(got)
	})
}

// Without a decode instance, the proxy sends nothing to a prefill instance.
func TestConcurrentWithoutDecode(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		m := startConcurrent(t, dialect, 1, 0, nil)
		m.rig.post("/v1/chat/completions", chatBody(true, "")).check(t, http.StatusServiceUnavailable)
		m.rig.entry()
		select {
		case l := <-m.legs:
			t.Errorf("a leg to %s", l.engine.address)
		default:
		}
	})
}

// Without a prefill instance, a decode instance computes the prompt itself: its leg has no
// kv_transfer_params.
func TestConcurrentFallsBack(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		m := startConcurrent(t, dialect, 1, 1, nil)
		got := m.begin(t.Context(), chatBody(true, ""))
		for range 2 {
			p, d := m.pair()
			p.reply(fails(500))
			await(t, "the abort of decode", d.left)
		}
		single := await(t, "the decode-only leg", m.legs)
		if single.engine.role != instance.Decode || strings.Contains(string(single.body), "kv_transfer_params") {
			t.Fatalf("%s got %s", single.engine.address, single.body)
		}
		single.reply(streams)
		await(t, "the answer", got).check(t, http.StatusOK, `"cached_tokens":9`)
		e := m.rig.entry()
		assert.True(t, e.DecodeOnly == "prefill_failed" && e.Prefill == "", "%+v", e)
	})
}

// Many pairs at once, each with its own transfer.
func TestConcurrentPairs_SeparateTransfers(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		m := startConcurrent(t, dialect, 2, 2, nil)
		const n = 40
		waiting := map[string]*pendingLeg{}
		seen := map[string]bool{}
		var clients sync.WaitGroup
		for i := range n {
			clients.Go(func() {
				a := m.rig.post("/v1/chat/completions", chatBody(true, ""), "X-Request-Id", "same")
				assert.True(t, a.status == http.StatusOK && strings.Contains(string(a.body), "hello"),
					"request %d: %d %s", i, a.status, a.body)
			})
		}
		for range 2 * n {
			l := await(t, "a leg", m.legs)
			other := waiting[l.TransferID]
			if other == nil {
				waiting[l.TransferID] = l
				continue
			}
			require.True(t, !seen[l.TransferID] && other.engine.role != l.engine.role,
				"transfer %s is used twice", l.TransferID)
			seen[l.TransferID] = true
			for _, x := range []*pendingLeg{l, other} {
				if x.engine.role == instance.Prefill {
					x.reply(ok)
				} else {
					x.reply(streams)
				}
			}
		}
		clients.Wait()
		for range n {
			m.rig.entry()
		}
	})
}

// A prefill leg that is not sent until decode has answered still sends the prompt of its own request: the
// memory of a body is not reused before both legs have ended.
func TestConcurrentPrefill_SentLate(t *testing.T) {
	t.Parallel()
	eachConcurrentDialect(t, func(t *testing.T, dialect string) {
		late, mayGo := make(chan struct{}), make(chan struct{})
		m := startConcurrent(t, dialect, 1, 1, func(o *forward.Options) {
			o.Privileged = func(*http.Request) bool { // called when a leg's header is made
				if strings.Contains(string(debug.Stack()), "beginPartner") {
					close(late)
					<-mayGo
				}
				return false
			}
		})
		const size = 9000 // of a memory class that no other test here uses
		body := func(letter string) string {
			return chatBody(true, `,"user":"`+strings.Repeat(letter, size)+`"`)
		}
		got := async(func() answer { return m.rig.post("/v1/chat/completions", body("a"), "X-Vllm-Priority", "1") })
		d := await(t, "the decode leg", m.legs)
		await(t, "the prefill leg to be late", late)
		end := make(chan struct{})
		d.reply(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, pairEvents)
			_ = http.NewResponseController(w).Flush()
			<-end
			_, _ = io.WriteString(w, pairRest)
		})
		m.rig.waitForHeld("the prompt is let go", func(held int64) bool { return held == 0 })
		var others sync.WaitGroup
		for range 8 { // their bodies take all free buffers
			others.Go(func() { m.rig.post("/tokenize", body("b")) })
		}
		for range 8 {
			defer await(t, "another client's request", m.legs).reply(ok)
		}
		close(mayGo)
		p := await(t, "the prefill leg", m.legs)
		assert.Contains(t, string(p.body), strings.Repeat("a", size))
		p.reply(ok)
		close(end)
		await(t, "the answer", got)
		t.Cleanup(others.Wait)
	})
}
