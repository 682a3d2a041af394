package clients_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

const (
	// model contains a slash, as most names do, and is the model of the recordings.
	model       = "org/simulated"
	maxModelLen = 4096
	adminKey    = "for-the-fleet"
	// soon limits waits for events that are immediate on a fast machine.
	soon = 60 * time.Second
)

var errNotYet = errors.New("not yet")

// rig is a proxy with an embedded etcd and strict NIXL engines.
type rig struct {
	t     *testing.T
	P, D  []*fakevllm.Server
	proxy *fleet.Proxy
	URL   string
}

// setup is the composition of a rig.
type setup struct {
	prefills, decodes int // 2 and 2; negative for none
	proxyArgs         []string
	engine            func(*fakevllm.Options)
}

func start(t *testing.T, s setup) *rig {
	t.Helper()
	r := &rig{t: t}
	shared := fakevllm.NewShared()
	engines := func(n int, role fakevllm.Role) (list []*fakevllm.Server) {
		if n == 0 {
			n = 2
		}
		for range n {
			o := fakevllm.Options{
				Role: role, Mode: fakevllm.NIXL, Models: []string{model}, MaxModelLen: maxModelLen, Shared: shared,
				StrictPrefill: true, PromptTokensDetails: true, Admin: true,
			}
			if s.engine != nil {
				s.engine(&o)
			}
			list = append(list, fakevllm.StartTest(t, o))
		}
		return list
	}
	r.P, r.D = engines(s.prefills, fakevllm.RolePrefill), engines(s.decodes, fakevllm.RoleDecode)
	args := []string{"--connector", "nixl"}
	for flag, list := range map[string][]*fakevllm.Server{"--prefill": r.P, "--decode": r.D} {
		if len(list) > 0 {
			args = append(append(args, flag), addresses(list)...)
		}
	}
	f := harness.NewFleet(t, binDir)
	p, err := f.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy", AdminKey: adminKey, Args: append(args, s.proxyArgs...)})
	require.NoError(t, err)
	require.NoError(t, p.WaitFor(t.Context(), len(r.P), len(r.D)))
	r.proxy, r.URL = p, p.URL()
	return r
}

func addresses(list []*fakevllm.Server) []string {
	out := make([]string, 0, len(list))
	for _, s := range list {
		out = append(out, s.Address())
	}
	return out
}

func (r *rig) engines() []*fakevllm.Server { return slices.Concat(r.P, r.D) }

// sum returns the sum of a counter over some engines.
func sum(list []*fakevllm.Server, f func(fakevllm.Counters) int64) (n int64) {
	for _, s := range list {
		n += f(s.Counters())
	}
	return n
}

func aborted(c fakevllm.Counters) int64 { return c.Aborted }

// script sets a fault on all of some engines.
func (r *rig) script(list []*fakevllm.Server, f fakevllm.Fault) {
	r.t.Helper()
	for _, s := range list {
		require.NoError(r.t, s.Script(f))
	}
}

// strict fails the test if an engine received an invalid request, and waits until no request runs and
// the proxy has none in flight.
func (r *rig) strict() {
	r.t.Helper()
	for _, s := range r.engines() {
		assert.Len(r.t, slices.Concat(s.Violations(), s.BadParams(), s.Refusals()), 0, s.Address())
		c := s.Counters()
		assert.True(r.t, c.Crashes <= 0, "%s would have crashed %d times", s.Address(), c.Crashes)
	}
	testkit.Eventually(r.t, soon, func() error {
		if n := sum(r.engines(), func(c fakevllm.Counters) int64 { return c.Running + c.Waiting }); n > 0 {
			return fmt.Errorf("%d requests run in the engines", n)
		}
		st, err := r.proxy.Status(r.t.Context())
		if err != nil {
			return err
		}
		for _, i := range st.Instances {
			if i.InFlight != nil && *i.InFlight != 0 {
				return fmt.Errorf("the proxy has %d requests in flight on %s", *i.InFlight, i.Address)
			}
		}
		return nil
	})
}

// split fails the test unless every prompt was computed by a prefill engine only.
func (r *rig) split() {
	r.t.Helper()
	n := sum(r.D, func(c fakevllm.Counters) int64 { return c.LocalPrefills })
	assert.True(r.t, n == 0, "decode engines computed %d prompts themselves", n)
}

// legs returns the completions that engines recorded, oldest first.
func legs(list []*fakevllm.Server) (out []fakevllm.Request) {
	for _, s := range list {
		for _, q := range s.Requests() {
			if q.Method == http.MethodPost && strings.HasSuffix(q.Path, "completions") {
				out = append(out, q)
			}
		}
	}
	slices.SortFunc(out, func(a, b fakevllm.Request) int { return a.Time.Compare(b.Time) })
	return out
}

// forget discards the recorded requests of the engines.
func (r *rig) forget() {
	for _, s := range r.engines() {
		s.ForgetRequests()
	}
}

// expected returns the simulated model's response to a body, one answer per choice.
func expected(t *testing.T, path string, body []byte) []fakevllm.Answer {
	t.Helper()
	a, err := fakevllm.ExpectedAt(path, body, maxModelLen)
	require.NoError(t, err)
	return a
}

// TestEventBoundaries checks that long streams, sent both at full speed and token by token, reach the
// tools in pieces of whole events. Their texts contain many blanks, line feeds and quotes, also at the
// ends of events.
func TestEventBoundaries(t *testing.T) {
	t.Parallel()
	for _, itl := range []time.Duration{0, time.Millisecond} {
		t.Run(itl.String(), func(t *testing.T) {
			t.Parallel()
			r := start(t, setup{prefills: 1, decodes: 1, engine: func(o *fakevllm.Options) { o.ITL = itl }})
			for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
				prompt := `"prompt":"a long \n\n story"`
				if strings.Contains(path, "chat") {
					prompt = `"messages":[{"role":"user","content":"a long \n\n story"}]`
				}
				body := `{"model":"` + model + `",` + prompt + `,"max_tokens":700,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`
				head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", path, len(body))
				w, err := dial(t.Context(), r.proxy.Address)
				require.NoError(t, err)
				rep, err := w.ask(exchange{method: "POST", path: path, head: head, body: body}, r.proxy.Address)
				w.Close()
				require.NoError(t, err)
				want := expected(t, path, []byte(body))
				assert.NoError(t, rep.asVLLMBench(want), path)
				assert.NoError(t, rep.asAIPerf(want), path)
				assert.False(t, itl > 0 && len(rep.chunks) < 50,
					"%s: 700 events came in %d pieces: their times are lost", path, len(rep.chunks))
			}
			r.strict()
			r.split()
		})
	}
}
