package engines

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/netguard"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// patientConfig takes instances for Mooncake's, and waits for them longer than a slow machine
// needs.
func patientConfig() *config.Proxy {
	return &config.Proxy{
		Clients:  config.Clients{Connector: "mooncake"},
		Requests: config.Requests{ConnectTimeout: 20 * time.Second},
		Health:   config.Health{ProbeTimeout: 20 * time.Second},
	}
}

// A Mooncake prefill engine whose record says nothing of its ids is asked for them, as
// is one whose connector comes from a flag; a server that does not answer is named.
func TestBootstrapIsAsked(t *testing.T) {
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
		if f, err := p.Probe(t.Context(), in(rec)); err != nil || f.EngineIDs != nil {
			t.Errorf("%+v: %+v, %v", rec, f, err)
		}
	}
	free := testkit.FreePort(t)
	_, port, err := net.SplitHostPort(free)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	away := instance.Record{Ports: map[string][]int{instance.PortBootstrap: {n}}}
	if _, err := p.Probe(t.Context(), in(away)); err == nil || !strings.Contains(err.Error(), "bootstrap server 127.0.0.1:"+port) {
		t.Errorf("nobody there: %v", err)
	}
}

// An engine that has begun another life is not called well before its new ids are known;
// one whose bootstrap server this proxy cannot reach is.
func TestAnotherLifeWaits(t *testing.T) {
	t.Parallel()
	p := NewProber(patientConfig(), netguard.Policy{}, nil)
	s := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RolePrefill, Mode: fakevllm.Mooncake})
	in := &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: s.Address()}, Record: instance.Record{
		Ports: map[string][]int{instance.PortBootstrap: {s.Bootstrap()}}, EngineIDs: map[string]string{"0": s.EngineID()}}}
	alive := func(want error) {
		t.Helper()
		if err := p.Alive(t.Context(), in); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	alive(nil)
	s.Kill()
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	alive(errAnotherLife)
	in.Record.EngineIDs = map[string]string{"0": s.EngineID()}
	alive(nil)
	_, port, err := net.SplitHostPort(testkit.FreePort(t))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	in.Record.EngineIDs, in.Record.Ports = map[string]string{"0": "of the agent"}, map[string][]int{instance.PortBootstrap: {n}}
	alive(nil)
	in.Record.Connector = "nixl"
	alive(nil)
}
