package kvfollow_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvfollow"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func engine(t *testing.T, version string) *fakevllm.Server {
	t.Helper()
	replay := "tcp://127.0.0.1:0"
	return fakevllm.StartTest(t, fakevllm.Options{
		Version: version, CacheBlocks: 64, BlockSize: 4, Mode: fakevllm.Plain,
		KVEvents: &fakevllm.KVEvents{Enabled: true, Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: &replay, Topic: "kv-events"},
	})
}

func complete(t *testing.T, s *fakevllm.Server, ids []uint32) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"prompt": ids, "max_tokens": 1})
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+"/v1/completions", bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	require.NoError(t, err)
	_ = resp.Body.Close() // only the status counts
	require.Equal(t, http.StatusOK, resp.StatusCode, resp.Status)
}

// members is a membership that the test sets.
type members struct {
	snap atomic.Pointer[instance.Snapshot]
}

func (m *members) set(all ...*instance.Instance) {
	if old := m.snap.Swap(instance.NewSnapshot(1, all)); old != nil {
		old.Supersede()
	}
}

func usable(s *fakevllm.Server, id string) *instance.Instance {
	address := strings.TrimPrefix(s.URL(), "http://")
	return &instance.Instance{
		Key: instance.Key{Role: instance.Prefill, Address: address}, Verified: true,
		Record: instance.Record{Address: address, Scheme: "http", State: instance.Ready, ID: id},
	}
}

func follow(t *testing.T, m *members, guard netguard.Policy) (*kvfollow.Follower, *kvindex.Index) {
	t.Helper()
	x := kvindex.New(nil)
	dialer := &net.Dialer{Control: guard.Control}
	f := kvfollow.New(kvfollow.Options{
		Index: x, Membership: m.snap.Load, Dial: dialer.DialContext, AskAgain: 10 * time.Millisecond,
		Ask: kvfollow.Sources(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}),
	})
	run(t, f)
	return f, x
}

func want(t *testing.T, x *kvindex.Index, in *instance.Instance, ids []uint32, n int) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		out := []int{0}
		x.Longest(kvindex.Chain(nil, ids, 4, "", ""), []kvindex.Target{{Address: in.Address}}, out)
		if out[0] != n {
			return fmt.Errorf("%d blocks, want %d; %+v", out[0], n, x.Stats(kvindex.Target{Address: in.Address}))
		}
		return nil
	})
}

// TestFollow: engines of both encodings are followed, from their answer or their record. A
// new incarnation is followed from the start, and an engine that has left is forgotten.
func TestFollow(t *testing.T) {
	t.Parallel()
	ids := []uint32{20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}
	for _, version := range []string{"0.33.0", "0.22.0"} {
		s := engine(t, version)
		complete(t, s, ids) // before the follower starts
		in := usable(s, "one")
		if version == "0.22.0" { // this version does not report its endpoints
			conf := s.KVEventSources()
			in.Record.KVEvents = map[string]instance.KVEvents{"0": {Endpoint: conf.Endpoint, ReplayEndpoint: *conf.ReplayEndpoint, Topic: conf.Topic}}
		}
		var m members
		m.set(in)
		f, x := follow(t, &m, netguard.New(nil))
		want(t, x, in, ids, 3)
		more := append(slices.Clip(ids), 33, 34, 35, 36)
		complete(t, s, more)
		want(t, x, in, more, 4)
		testkit.Eventually(t, 20*time.Second, func() error { // the replay has an end mark after its last batch
			if st := f.Status(); len(st) != 1 || st[0].State != "following" || st[0].Index.Blocks < 4 {
				return fmt.Errorf("%+v", st)
			}
			return nil
		})
		again := usable(s, "two")
		again.Record.KVEvents = in.Record.KVEvents
		m.set(again)
		want(t, x, in, more, 4)
		m.set()
		want(t, x, in, more, kvindex.Unknown)
		st := f.Status()
		assert.True(t, len(st) == 0 && len(x.Targets()) == 0, "%+v, %v", st, x.Targets())
	}
}

// TestFollow_RecordGetsEndpoints: an engine is followed once its
// record has the endpoints, and at the new ones when they change.
func TestFollow_RecordGetsEndpoints(t *testing.T) {
	t.Parallel()
	a, b := engine(t, "0.22.0"), engine(t, "0.22.0") // they do not report their endpoints
	ids := []uint32{20, 21, 22, 23, 24, 25, 26, 27, 28}
	complete(t, b, ids)
	var m members
	m.set(usable(a, "one"))
	f, x := follow(t, &m, netguard.New(nil))
	testkit.Until(t, 20*time.Second, f.Status, func(st []kvfollow.Status) bool {
		return len(st) == 1 && st[0].Error == "it publishes no KV events"
	})
	for i, s := range []*fakevllm.Server{a, b} {
		in, conf := usable(a, "one"), s.KVEventSources()
		in.Record.KVEvents = map[string]instance.KVEvents{"0": {Endpoint: conf.Endpoint, ReplayEndpoint: *conf.ReplayEndpoint, Topic: conf.Topic}}
		m.set(in)
		want(t, x, in, ids, 2*i)
	}
}

// TestFollow_MissedEvents: an engine without replay has published before it was
// followed. Its index is not complete, because its cache may have those blocks.
func TestFollow_MissedEvents(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{
		Version: "0.33.0", CacheBlocks: 64, BlockSize: 4, Mode: fakevllm.Plain,
		KVEvents: &fakevllm.KVEvents{Enabled: true, Endpoint: "tcp://127.0.0.1:0", Topic: "kv-events"},
	})
	first := []uint32{20, 21, 22, 23, 24, 25, 26, 27, 28}
	complete(t, s, first)
	in := usable(s, "one")
	var m members
	m.set(in)
	_, x := follow(t, &m, netguard.New(nil))
	want(t, x, in, first, 0)
	target := kvindex.Target{Address: in.Address}
	assert.False(t, x.Complete(target), "complete before any event")
	next := uint32(100)
	testkit.Eventually(t, 20*time.Second, func() error { // the subscription may arrive late
		complete(t, s, []uint32{next, next + 1, next + 2, next + 3, next + 4})
		next += 10
		if st := x.Stats(target); st.Blocks == 0 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	want(t, x, in, first, 0)
	assert.False(t, x.Complete(target), "complete without the first events")
}

// TestFollow_ForbiddenEndpoint: an engine cannot make the proxy connect to a forbidden
// address. The cache of an engine that is not followed is unknown.
func TestFollow_ForbiddenEndpoint(t *testing.T) {
	t.Parallel()
	s := engine(t, "0.33.0")
	in := usable(s, "one")
	var m members
	m.set(in)
	f, x := follow(t, &m, netguard.New([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}))
	testkit.Eventually(t, 20*time.Second, func() error {
		st := f.Status()
		if len(st) != 1 || st[0].State != "lost" || !strings.Contains(st[0].Error, "outside --instance-allow") {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	want(t, x, in, []uint32{1, 2, 3, 4}, kvindex.Unknown)
	m.set()
}

// TestNoEvents: an engine that publishes nothing is listed with the reason, and queried again.
func TestNoEvents(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.Plain})
	var m members
	m.set(usable(s, "one"))
	f, _ := follow(t, &m, netguard.New(nil))
	testkit.Until(t, 20*time.Second, f.Status, func(st []kvfollow.Status) bool {
		return len(st) == 1 && st[0].Error == "it publishes no KV events"
	})
}

// answers returns an Options.Ask for an engine with these publishers.
func answers(by map[int]kvevents.Publisher) func(context.Context, *instance.Instance) (map[int]kvevents.Publisher, error) {
	return func(context.Context, *instance.Instance) (map[int]kvevents.Publisher, error) {
		return maps.Clone(by), nil
	}
}

// TestFollow_RestartElsewhere: an engine without an id in its record
// restarts, and publishes nothing for a while, then at another endpoint.
func TestFollow_RestartElsewhere(t *testing.T) {
	t.Parallel()
	a, b := engine(t, "0.33.0"), engine(t, "0.33.0")
	ids := []uint32{20, 21, 22, 23, 24, 25, 26, 27, 28}
	complete(t, a, ids[:5])
	complete(t, b, ids)
	var publishes atomic.Pointer[fakevllm.Server]
	publishes.Store(a)
	in := usable(a, "")
	var m members
	m.set(in)
	x := kvindex.New(nil)
	f := kvfollow.New(kvfollow.Options{
		Index: x, Membership: m.snap.Load, Dial: new(net.Dialer).DialContext, AskAgain: 10 * time.Millisecond,
		Ask: func(context.Context, *instance.Instance) (map[int]kvevents.Publisher, error) {
			s := publishes.Load()
			if s == nil {
				return nil, nil
			}
			conf := s.KVEventSources()
			return map[int]kvevents.Publisher{0: {Endpoint: conf.Endpoint, Replay: *conf.ReplayEndpoint, Topic: conf.Topic}}, nil
		},
	})
	run(t, f)
	want(t, x, in, ids, 1)
	publishes.Store(nil)
	a.Kill()
	testkit.Eventually(t, 20*time.Second, func() error {
		if st := f.Status(); len(st) != 1 || st[0].Error != "it publishes no KV events" || len(x.Targets()) != 0 {
			return fmt.Errorf("%+v, %v", st, x.Targets())
		}
		return nil
	})
	publishes.Store(b)
	want(t, x, in, ids, 2)
}

// run runs a Follower until the test ends.
func run(t *testing.T, f *kvfollow.Follower) {
	t.Helper()
	t.Cleanup(background.Start(t.Context(), f.Run))
}

// TestConnects: a publisher that connects instead of binding cannot be followed, and the reason is reported.
func TestConnects(t *testing.T) {
	t.Parallel()
	port := testkit.FreePort(t)
	s := fakevllm.StartTest(t, fakevllm.Options{
		Version: "0.33.0", CacheBlocks: 64, BlockSize: 4, Mode: fakevllm.Plain,
		KVEvents: &fakevllm.KVEvents{Enabled: true, Endpoint: "tcp://" + port},
	})
	var m members
	m.set(usable(s, "one"))
	f, _ := follow(t, &m, netguard.New(nil))
	testkit.Until(t, 20*time.Second, f.Status, func(st []kvfollow.Status) bool {
		return len(st) == 1 && st[0].State == "lost" && strings.Contains(st[0].Error, "tcp://"+port+" has no wildcard: its publisher connects there") && strings.HasPrefix(st[0].Error, st[0].Hint+" (")
	})
}

// TestSecondServerOfAGroup: ranks 2 and 3 of a group, on its second
// server, are followed as ranks 0 and 1, their numbers in requests.
func TestSecondServerOfAGroup(t *testing.T) {
	t.Parallel()
	a, b := engine(t, "0.33.0"), engine(t, "0.33.0")
	ids := []uint32{20, 21, 22, 23, 24, 25, 26, 27, 28}
	complete(t, b, ids)
	by := map[int]kvevents.Publisher{}
	for i, s := range []*fakevllm.Server{a, b} {
		conf := s.KVEventSources()
		by[2+i] = kvevents.Publisher{Endpoint: conf.Endpoint, Replay: *conf.ReplayEndpoint, Topic: conf.Topic}
	}
	in := usable(a, "one")
	in.Record.DPSize = 2
	var m members
	m.set(in)
	x := kvindex.New(nil)
	run(t, kvfollow.New(kvfollow.Options{Index: x, Membership: m.snap.Load, Ask: answers(by), Dial: new(net.Dialer).DialContext}))
	testkit.Eventually(t, 20*time.Second, func() error {
		first, second := x.Stats(kvindex.Target{Address: in.Address}), x.Stats(kvindex.Target{Address: in.Address, Rank: 1})
		if !first.Live || first.Blocks != 0 || !second.Live || second.Blocks == 0 {
			return fmt.Errorf("%+v, %+v", first, second)
		}
		return nil
	})
}

// TestFollower_DepartedEngineHangs: while the connection to an engine that has left hangs, other engines
// are followed and Status returns. The engine's next incarnation waits for the old connection.
func TestFollower_DepartedEngineHangs(t *testing.T) {
	t.Parallel()
	a, b := engine(t, "0.33.0"), engine(t, "0.33.0")
	hung := "tcp://" + strings.TrimPrefix(a.KVEventSources().Endpoint, "tcp://")
	dials, end := make(chan struct{}, 10), make(chan struct{})
	var m members
	first, second := usable(a, "one"), usable(b, "one")
	m.set(first)
	f := kvfollow.New(kvfollow.Options{
		Index: kvindex.New(nil), Membership: m.snap.Load, Ask: kvfollow.Sources(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if "tcp://"+address == hung {
				dials <- struct{}{}
				<-end // even if ctx has ended
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	})
	run(t, f)
	release := sync.OnceFunc(func() { close(end) })
	t.Cleanup(release) // before the follower ends
	<-dials
	m.set(second)
	followed := func(in *instance.Instance) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() error {
			st := make(chan []kvfollow.Status, 1)
			go func() { st <- f.Status() }()
			select {
			case is := <-st:
				if len(is) != 1 || is[0].Address != in.Address || !is[0].Index.Live {
					return fmt.Errorf("%+v", is)
				}
				return nil
			case <-time.After(5 * time.Second):
				return errors.New("Status does not return")
			}
		})
	}
	followed(second)
	again := usable(a, "two")
	m.set(again)
	testkit.Until(t, 20*time.Second, f.Status, func(st []kvfollow.Status) bool {
		return len(st) == 1 && st[0].Address == again.Address && st[0].State == kvevents.Lost
	})
	assert.Empty(t, dials, "the next incarnation was dialled while the former one hung")
	release()
	followed(again)
}
