package zmqregister_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/zmqregister"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

const (
	ttl  = 6 * time.Second // outlives a few seconds without CPU
	soon = time.Minute
)

// bridge runs a Bridge; stop ends it as the end of its program would.
func bridge(t *testing.T, cli *clientv3.Client, endpoint, host string) (b *zmqregister.Bridge, stop func()) {
	t.Helper()
	log, text := logrus.New(), new(testkit.Buffer)
	log.SetOutput(io.MultiWriter(t.Output(), text))
	l := members.Layout(t)
	b, err := zmqregister.Listen(t.Context(), zmqregister.Options{
		Endpoint: endpoint, HostID: host, TTL: ttl, AllowLoopback: true,
		Agents: agent.Options{Base: instance.Record{Agent: "test"}, ProbeInterval: 100 * time.Millisecond},
		Client: vllm.New(""), Log: log,
		Registrar: func(o lease.RegistrarOptions) *lease.Registrar {
			o.Layout = l
			return lease.NewRegistrar(cli, o)
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		before := len(text.String())
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled, "the bridge ended with")
		assert.NotContains(t, text.String()[before:], "has exited")
	}
	t.Cleanup(stop)
	return b, stop
}

func endpointOf(b *zmqregister.Bridge) string { return "tcp://" + b.Addr().String() }

// sender returns a peer that sends pings to b.
func sender(t *testing.T, b *zmqregister.Bridge) *zmqpeer.Sender {
	t.Helper()
	to, err := zmqpeer.NewSender(zmq.Dealer, endpointOf(b))
	require.NoError(t, err)
	t.Cleanup(to.Close)
	return to
}

func engine(t *testing.T, b *zmqregister.Bridge, o fakevllm.Options) *fakevllm.Server {
	t.Helper()
	o.PingTo, o.PingInterval = endpointOf(b), 50*time.Millisecond
	if o.Mode == "" {
		o.Mode = fakevllm.MoRIIOWrite
	}
	return fakevllm.StartTest(t, o)
}

// record returns the record of an instance in etcd; nil if there is none.
func record(t *testing.T, cli *clientv3.Client, k instance.Key) *instance.Record {
	t.Helper()
	resp, err := cli.Get(t.Context(), members.Layout(t).Instance(k))
	require.NoError(t, err)
	if len(resp.Kvs) == 0 {
		return nil
	}
	rec, _, err := schema.DecodeRecord(k, resp.Kvs[0].Value)
	require.NoError(t, err)
	assert.NotEqualValues(t, 0, resp.Kvs[0].Lease, "%s has no lease", k)
	return &rec
}

func waitReady(t *testing.T, cli *clientv3.Client, k instance.Key) (rec *instance.Record) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		if rec = record(t, cli, k); rec == nil || rec.State != instance.Ready {
			return fmt.Errorf("%s is %+v", k, rec)
		}
		return nil
	})
	return rec
}

func waitGone(t *testing.T, cli *clientv3.Client, k instance.Key) {
	t.Helper()
	testkit.Until(t, soon, func() *instance.Record { return record(t, cli, k) }, func(rec *instance.Record) bool { return rec == nil })
}

func key(role instance.Role, s *fakevllm.Server) instance.Key {
	return instance.Key{Role: role, Address: s.Address()}
}

// TestPings_Register: pings of both formats register an instance while they continue.
func TestPings_Register(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	b, _ := bridge(t, cli, "tcp://127.0.0.1:0", "host-1")
	p := engine(t, b, fakevllm.Options{Role: fakevllm.RolePrefill, TPSize: 8})
	d := engine(t, b, fakevllm.Options{Role: fakevllm.RoleDecode, Mode: fakevllm.MoRIIORead, PingOld: true})
	pk, dk := key(instance.Prefill, p), key(instance.Decode, d)
	rec := waitReady(t, cli, pk)
	if rec.Connector != "moriio" || rec.TransferMode != "WRITE" || rec.ZMQAddress != p.ZMQAddress() || rec.TPSize != 8 || rec.DPSize != 1 ||
		len(rec.Models) != 1 || rec.Version == "" || rec.Agent != "test" {
		t.Errorf("registered as %+v", rec)
	}
	rec = waitReady(t, cli, dk)
	assert.True(t, rec.TransferMode == "READ" && rec.ZMQAddress == d.ZMQAddress(), "the older form is %+v", rec)
	p.Mute(true)
	waitGone(t, cli, pk)
	rec = record(t, cli, dk)
	assert.True(t, rec != nil && rec.State == instance.Ready, "one that pings is %+v", rec)
	p.Mute(false)
	waitReady(t, cli, pk)
}

// TestRestartInTheOtherRole: the new role is registered once the former one has left.
func TestRestartInTheOtherRole(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	b, _ := bridge(t, cli, "tcp://127.0.0.1:0", "host-1")
	p := engine(t, b, fakevllm.Options{Role: fakevllm.RolePrefill})
	pk := key(instance.Prefill, p)
	waitReady(t, cli, pk)
	p.Kill()
	d := engine(t, b, fakevllm.Options{Role: fakevllm.RoleDecode, Addr: p.Address()})
	waitReady(t, cli, key(instance.Decode, d))
	rec := record(t, cli, pk)
	assert.True(t, rec == nil, "the former role is %+v", rec)
}

// TestPing_EngineProbedFirst: a ping for an engine that does not answer
// registers nothing, and a registered engine that fails is "down".
func TestPing_EngineProbedFirst(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	b, _ := bridge(t, cli, "tcp://127.0.0.1:0", "host-1")
	d := engine(t, b, fakevllm.Options{Role: fakevllm.RoleDecode})
	absent := instance.Key{Role: instance.Prefill, Address: testkit.FreePort(t)}
	to := sender(t, b)
	ping := pack(t, newer(map[string]any{"http_address": absent.Address}))
	require.NoError(t, to.Send(t.Context(), ping))
	waitReady(t, cli, key(instance.Decode, d))
	require.NoError(t, to.Send(t.Context(), ping))
	rec := record(t, cli, absent)
	assert.True(t, rec == nil, "an engine that does not answer is %+v", rec)
	// Its process has ended; its pings continue.
	dk := key(instance.Decode, d)
	again := pack(t, newer(map[string]any{"type": "D", "http_address": d.Address(), "zmq_address": d.ZMQAddress(), "tp_size": 1}))
	d.Kill()
	testkit.Eventually(t, soon, func() error {
		if err := to.Send(t.Context(), again); err != nil {
			return err
		}
		if rec := record(t, cli, dk); rec == nil || rec.State != instance.Down {
			return fmt.Errorf("an engine that refuses is %+v", rec)
		}
		return nil
	})
}

// TestBridgeEnds: registrations outlive the bridge until their lease
// expires. The next bridge continues them under the same incarnation.
func TestBridgeEnds(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	b, stop := bridge(t, cli, "tcp://"+testkit.FreePort(t), "host-1")
	p := engine(t, b, fakevllm.Options{Role: fakevllm.RolePrefill})
	k := key(instance.Prefill, p)
	was := waitReady(t, cli, k)
	endpoint := endpointOf(b)
	stop()
	rec := record(t, cli, k)
	assert.True(t, rec != nil && rec.State == instance.Ready, "after the end of the bridge: %+v", rec)
	_, stop = bridge(t, cli, endpoint, "host-1")
	testkit.Until(t, soon, func() *instance.Record { return record(t, cli, k) }, func(rec *instance.Record) bool { return rec != nil && rec.ID == was.ID })
	stop()
	waitGone(t, cli, k)
}

// TestForeignKey_NotTakenOver: a second bridge does not take a key while the first one holds it.
func TestForeignKey_NotTakenOver(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	b, stop := bridge(t, cli, "tcp://127.0.0.1:0", "host-1")
	p := engine(t, b, fakevllm.Options{Role: fakevllm.RolePrefill})
	k := key(instance.Prefill, p)
	first := waitReady(t, cli, k)
	// Another bridge on the same machine gets pings of the same engine.
	other, _ := bridge(t, cli, "tcp://127.0.0.1:0", "host-1")
	to := sender(t, other)
	ping := pack(t, newer(map[string]any{"http_address": k.Address, "zmq_address": p.ZMQAddress(), "tp_size": 1}))
	end := time.Now().Add(2 * ttl)
	for time.Now().Before(end) {
		require.NoError(t, to.Send(t.Context(), ping))
		rec := record(t, cli, k)
		require.True(t, rec != nil && rec.HostID == first.HostID, "another bridge has taken the key: %+v", rec)
		time.Sleep(50 * time.Millisecond) // the ping interval of such an engine
	}
	stop()
	p.Mute(true)
	testkit.Eventually(t, soon, func() error {
		if err := to.Send(t.Context(), ping); err != nil {
			return err
		}
		if rec := record(t, cli, k); rec == nil || rec.HostID == first.HostID {
			return fmt.Errorf("the other bridge has not taken over: %+v", rec)
		}
		return nil
	})
}

// TestMalformedPings_Ignored: malformed pings are counted, and the bridge continues.
func TestMalformedPings_Ignored(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	b, _ := bridge(t, cli, "tcp://127.0.0.1:0", "host-1")
	to := sender(t, b)
	for _, frames := range [][][]byte{{{}}, {[]byte("x"), []byte("y")}, {{0xdf, 0xff, 0xff, 0xff, 0xff}}, {pack(t, map[string]any{"type": "HELLO"})}} {
		require.NoError(t, to.Send(t.Context(), frames...))
	}
	p := engine(t, b, fakevllm.Options{Role: fakevllm.RolePrefill})
	waitReady(t, cli, key(instance.Prefill, p))
	testkit.Until(t, soon, b.Counts, func(n zmqregister.Counts) bool {
		return n.Refused == 3 && n.Instances == 1 && n.Registrations == 1 && n.Pings >= 3 && n.Lost == 0
	})
	p.Kill()
	waitGone(t, cli, key(instance.Prefill, p))
	testkit.Until(t, soon, b.Counts, func(n zmqregister.Counts) bool {
		return n.Instances == 0 && n.Registrations == 1 && n.Lost == 1
	})
}

// TestLibzmqPings: an engine that pings by libzmq crashes, and another one outlives a bridge.
func TestLibzmqPings(t *testing.T) {
	t.Parallel()
	python := testkit.PythonWithZMQ(t)
	cli := etcdtest.Start(t).Client(t)
	b, stop := bridge(t, cli, "tcp://"+testkit.FreePort(t), "host-1")
	endpoint := endpointOf(b)
	d := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RoleDecode, Mode: fakevllm.MoRIIOWrite})
	k := key(instance.Decode, d)
	for _, message := range []map[string]any{
		newer(map[string]any{"type": "D", "http_address": d.Address(), "zmq_address": d.ZMQAddress()}),
		older(map[string]any{"role": "D", "request_address": d.URL() + "/v1/completions"}),
	} {
		peer := testkit.StartPython(t, python, "testdata/ping.py", endpoint, hex.EncodeToString(pack(t, message)))
		waitReady(t, cli, k)
		peer.Kill()
		waitGone(t, cli, k)
	}
	testkit.StartPython(t, python, "testdata/ping.py", endpoint, hex.EncodeToString(pack(t, older(map[string]any{"role": "D", "request_address": d.URL() + "/v1/completions"}))))
	waitReady(t, cli, k)
	stop()
	waitGone(t, cli, k) // when its lease expires
	bridge(t, cli, endpoint, "host-1")
	waitReady(t, cli, k)
}
