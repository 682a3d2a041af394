package engines

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// patientConfig treats instances as Mooncake's, and has timeouts that are long enough for a slow machine.
func patientConfig() *config.Proxy {
	return &config.Proxy{
		Clients:  config.Clients{Connector: "mooncake"},
		Requests: config.Requests{ConnectTimeout: 20 * time.Second},
		Health:   config.Health{ProbeTimeout: 20 * time.Second},
	}
}

// A Mooncake prefill engine whose record lacks engine ids is queried for them, also if
// a flag sets the connector. A bootstrap server that does not answer is named.
func TestBootstrap_Queried(t *testing.T) {
	t.Parallel()
	p := NewProber(patientConfig(), netguard.Policy{}, nil)
	s := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RolePrefill, Mode: fakevllm.Mooncake})
	ports := map[string][]int{instance.PortBootstrap: {s.Bootstrap()}}
	in := func(rec instance.Record) *instance.Instance {
		return &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: s.Address()}, Record: rec}
	}
	for _, rec := range []instance.Record{{Ports: ports}, {Connector: "mooncake", Ports: ports}, {Connector: "MooncakeConnector", Ports: ports}} {
		if f, err := p.Probe(t.Context(), in(rec)); err != nil || f.EngineIDs["0"] != s.EngineID() || len(f.Models) != 1 {
			t.Errorf("%+v: %+v, %v", rec, f, err)
		}
	}
	for _, rec := range []instance.Record{{Connector: "nixl", Ports: ports}, {EngineIDs: map[string]string{"0": "e"}}} {
		f, err := p.Probe(t.Context(), in(rec))
		assert.True(t, err == nil && f.EngineIDs == nil, "%+v: %+v, %v", rec, f, err)
	}
	free := testkit.FreePort(t)
	_, port, err := net.SplitHostPort(free)
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	away := instance.Record{Ports: map[string][]int{instance.PortBootstrap: {n}}}
	_, err = p.Probe(t.Context(), in(away))
	assert.ErrorContains(t, err, "bootstrap server 127.0.0.1:"+port)
}

// A restarted engine is not reported as alive before its new ids are
// known. An engine whose bootstrap server this proxy cannot reach is.
func TestNewIncarnation_WaitsForEngineIDs(t *testing.T) {
	t.Parallel()
	p := NewProber(patientConfig(), netguard.Policy{}, nil)
	p.idsLimit = 20 * time.Second
	s := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RolePrefill, Mode: fakevllm.Mooncake})
	in := &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: s.Address()}, Record: instance.Record{
		Ports: map[string][]int{instance.PortBootstrap: {s.Bootstrap()}}, EngineIDs: map[string]string{"0": s.EngineID()}}}
	alive := func(want error) {
		t.Helper()
		err := p.Alive(t.Context(), in)
		assert.True(t, errors.Is(err, want) && (err == nil) == (want == nil), "%v, want %v", err, want)
	}
	alive(nil)
	s.Kill()
	require.NoError(t, s.Restart(t.Context()))
	alive(errRestarted)
	in.Record.EngineIDs = map[string]string{"0": s.EngineID()}
	alive(nil)
	_, port, err := net.SplitHostPort(testkit.FreePort(t))
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	in.Record.EngineIDs, in.Record.Ports = map[string]string{"0": "of the agent"}, map[string][]int{instance.PortBootstrap: {n}}
	alive(nil)
	in.Record.Connector = "nixl"
	alive(nil)
}

// members is a membership that does not change.
type members struct{ snap *instance.Snapshot }

func (m members) Snapshot() *instance.Snapshot { return m.snap }

// An engine that responds is not ejected as silent because its bootstrap server
// does not answer: a firewall may allow only its agent to reach that.
func TestProber_SilentBootstrapServer(t *testing.T) {
	t.Parallel()
	silent := testkit.Listen(t) // nothing is accepted
	port := netip.MustParseAddrPort(silent.Addr().String()).Port()
	ready := func(rec instance.Record) *instance.Instance {
		s := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RolePrefill})
		rec.State = instance.Ready
		return &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: s.Address()}, Verified: true, Record: rec}
	}
	in := ready(instance.Record{EngineIDs: map[string]string{"0": "e"}, Ports: map[string][]int{instance.PortBootstrap: {int(port)}}})
	peer := ready(instance.Record{Connector: "nixl"})
	log := logrus.New()
	log.SetOutput(io.Discard)
	tr := health.New(health.Options{
		Source: members{instance.NewSnapshot(1, []*instance.Instance{in, peer})}, Log: log,
		Prober: NewProber(patientConfig(), netguard.Policy{}, nil), ProbeTimeout: 20 * time.Second, SilenceLimit: 5 * time.Second,
	})
	defer tr.Close()
	tr.Suspect(in)
	testkit.Eventually(t, time.Minute, func() error {
		e, ejected := tr.Ejected(in.Key)
		require.False(t, ejected, "ejected: %s", e)
		if tr.Trouble() {
			return errors.New("the check is not over")
		}
		return nil
	})
}

// A trial is one token on each data-parallel rank, with the key for the engines and without
// transfer params. Its error reports what the answer proves.
func TestProber_Trial(t *testing.T) {
	t.Parallel()
	cfg := patientConfig()
	cfg.EngineAPIKey = "engines"
	p := NewProber(cfg, netguard.Policy{}, nil)
	at := func(s *fakevllm.Server) *instance.Instance {
		rec := instance.Record{Models: []string{"fake-model"}, DPSize: len(s.Ranks())}
		return &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: s.Address()}, Record: rec}
	}
	for name, o := range map[string]fakevllm.Options{
		"decode":    {Role: fakevllm.RoleDecode, Mode: fakevllm.NIXL, APIKey: "engines", StrictPrefill: true},
		"prefill":   {Role: fakevllm.RolePrefill, Mode: fakevllm.NIXL, APIKey: "engines", StrictPrefill: true},
		"two ranks": {Role: fakevllm.RoleDecode, Mode: fakevllm.NIXL, APIKey: "engines", DPSize: 2},
	} {
		s := fakevllm.StartTest(t, o)
		assert.NoError(t, p.Trial(t.Context(), at(s)), name)
		n := s.Counters()
		if ranks := int64(len(s.Ranks())); n.Requests != ranks || n.PromptTokens != ranks || n.GenerationTokens != ranks || n.KVParams != 0 {
			t.Errorf("%s: %+v", name, n)
		}
		for _, r := range s.Ranks() {
			assert.EqualValues(t, 1, r.Requests, "%s: trials of a rank", name)
		}
		s.Pause(true)
		err := p.Trial(t.Context(), at(s))
		assert.True(t, err != nil && !errors.Is(err, health.ErrRefused), "%s, paused: %v", name, err)
		s.Pause(false)
		s.SetCore(fakevllm.CoreState{Hung: true})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		assert.ErrorIs(t, p.Trial(ctx, at(s)), health.ErrNoAnswer, "%s, hung", name)
		cancel()
		s.SetCore(fakevllm.CoreState{})
	}
	locked := fakevllm.StartTest(t, fakevllm.Options{APIKey: "another"})
	assert.ErrorIs(t, p.Trial(t.Context(), at(locked)), health.ErrRefused, "a key that the engine refuses")
	locked.Kill()
	err := p.Trial(t.Context(), at(locked))
	assert.True(t, err != nil && !errors.Is(err, health.ErrRefused), "a stopped engine: %v", err)
}

// A trial that could not be sent says nothing about the engine, even if only one rank's request failed.
func TestProber_TrialNotSent(t *testing.T) {
	t.Parallel()
	for _, ranks := range []int{1, 2} {
		s := fakevllm.StartTest(t, fakevllm.Options{DPSize: ranks})
		p := NewProber(patientConfig(), netguard.Policy{}, nil)
		var sent atomic.Int64
		p.Client.HTTP.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if sent.Add(1) == int64(ranks) {
				return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}}
		in := &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: s.Address()}, Record: instance.Record{DPSize: ranks}}
		assert.ErrorIs(t, p.Trial(t.Context(), in), health.ErrNotSent, "%d ranks", ranks)
	}
}

// An engine reports that it sleeps or is paused only with VLLM_SERVER_DEV_MODE=1.
func TestProber_Suspended(t *testing.T) {
	t.Parallel()
	p := NewProber(patientConfig(), netguard.Policy{}, nil)
	for _, version := range []string{"0.22.0", "0.33.0"} {
		s := fakevllm.StartTest(t, fakevllm.Options{DevMode: true, Version: version})
		in := &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: s.Address()}}
		for is, want := range map[fakevllm.CoreState]instance.View{
			{}: "", {Sleeping: true}: instance.Sleeping, {Paused: true}: instance.Paused, {Hung: true}: "",
		} {
			if version == "0.22.0" && is.Paused {
				want = "" // it has no /is_paused
			}
			s.SetCore(is)
			got, err := p.Suspended(t.Context(), in)
			assert.True(t, err == nil && got == want, "%s, %+v: %q, %v", version, is, got, err)
		}
		s.SetCore(fakevllm.CoreState{})
	}
	s := fakevllm.StartTest(t, fakevllm.Options{})
	_, err := p.Suspended(t.Context(), &instance.Instance{Key: instance.Key{Address: s.Address()}})
	assert.ErrorIs(t, err, health.ErrNoRoute, "without the routes")
}

// A failed query whether an engine sleeps or is paused does not mean that the route is missing.
func TestProber_SuspendedWithoutAnswer(t *testing.T) {
	t.Parallel()
	p := NewProber(patientConfig(), netguard.Policy{}, nil)
	for name, answer := range map[string]http.HandlerFunc{
		"an error":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"a lost call": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		for _, path := range []string{"/is_sleeping", "/is_paused"} {
			mux := http.NewServeMux()
			mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == path {
					answer(w, r)
					return
				}
				_, _ = w.Write([]byte(`{"is_sleeping":false,"is_paused":false}`))
			})
			s := httptest.NewServer(mux)
			in := &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: s.Listener.Addr().String()}}
			_, err := p.Suspended(t.Context(), in)
			assert.True(t, err != nil && !errors.Is(err, health.ErrNoRoute), "%s of %s: %v", name, path, err)
			s.Close()
		}
	}
}
