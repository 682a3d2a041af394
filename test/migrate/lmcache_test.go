package migrate_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// The commands of LMCache's documentation of disaggregated prefill, with its "... other arguments"
// written out.
const (
	lmcacheHosts = `python disagg_proxy_server.py \
    --prefiller-host "${host1-IP},${host2-IP}" \
    --prefiller-port "8000" \
    --decoder-host "${host3-IP},${host4-IP}" \
    --decoder-port "8000,8001"`
	lmcachePorts = `python disagg_proxy_server.py \
    --port 9100 --prefiller-host localhost --prefiller-port 7100,7101 --decoder-host localhost --decoder-port 7200,7201 \
    --proxy-host localhost --proxy-port 7500 \
    --decoder-init-port  "7300,7301,7302,7303,7304,7305,7306,7307" \
    --decoder-alloc-port "7400,7401,7402,7403,7404,7405,7406,7407"`
)

// overStore sets the connector of proxies whose test engines share a store. LMCache's PD backend, which
// the command line implies, is tested in package forward and by the demo.
const overStore = "PD_CONNECTOR=plain"

// awaitLog waits until the proxy's log contains all of the texts.
func awaitLog(t *testing.T, p *fleet.Process, texts ...string) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		b, err := os.ReadFile(p.LogFile())
		if err != nil {
			return err
		}
		for _, w := range texts {
			if !strings.Contains(string(b), w) {
				return fmt.Errorf("the log does not contain %q", w)
			}
		}
		return nil
	})
}

// One port for two hosts, and two ports for two other hosts. The hosts are loopback addresses here, so
// that all of them and the proxy can use port 8000 of the document.
func TestLMCacheSeveralHosts(t *testing.T) {
	t.Parallel()
	s := newSite(t, fakevllm.Plain, "8000")
	s.reserve("8001")
	up := func(role fakevllm.Role, host, variable, port string) string {
		s.vars[variable] = host
		o := s.engine(role, "")
		o.Addr = host + ":" + s.ports[port]
		e := fakevllm.StartTest(t, o)
		s.engines[variable] = e
		return e.Address()
	}
	prefills := []string{
		up(fakevllm.RolePrefill, "127.0.0.2", "host1-IP", "8000"),
		up(fakevllm.RolePrefill, "127.0.0.3", "host2-IP", "8000"),
	}
	decodes := []string{
		up(fakevllm.RoleDecode, "127.0.0.4", "host3-IP", "8000"),
		up(fakevllm.RoleDecode, "127.0.0.5", "host4-IP", "8001"),
	}
	p := s.start(lmcacheHosts, overStore, "PD_PORT="+s.ports["8000"]) // the line uses the default, 8000
	testkit.Until(t, soon, s.status, func(st status) bool {
		return slices.Equal(st.PrefillNodes, prefills) && slices.Equal(st.DecodeNodes, decodes)
	})
	for range 4 {
		s.serves(elasticChat, "hello", 50)
	}
	for name, e := range s.engines {
		assert.True(t, e.Counters().Requests != 0, "%s served nothing", name)
	}
	awaitLog(t, p, `the connector is \"plain\"`)
	s.strict(true)
}

func TestLMCachePortLists(t *testing.T) {
	t.Parallel()
	s := newSite(t, fakevllm.Plain, "9100")
	s.up(fakevllm.RolePrefill, "7100", "7101")
	s.up(fakevllm.RoleDecode, "7200", "7201")
	p := s.start(lmcachePorts, overStore)
	s.await([]string{"7100", "7101"}, []string{"7200", "7201"})
	for range 4 {
		s.serves(strings.ReplaceAll(elasticCompletion, "8000", "9100"), "hello", 50)
	}
	want := map[string][]int{
		"lmcache_init":  {7300, 7301, 7302, 7303, 7304, 7305, 7306, 7307},
		"lmcache_alloc": {7400, 7401, 7402, 7403, 7404, 7405, 7406, 7407},
	}
	for _, port := range []string{"7200", "7201"} {
		assert.Equal(t, "", cmp.Diff(want, s.record(instance.Decode, port).Ports), "ports of %s", port)
	}
	awaitLog(t, p, `the connector is \"plain\"`)
	s.strict(true)
}

// CLIENT_BOUND: requests of one session reach the same two instances.
func TestLMCacheBoundSessions(t *testing.T) {
	t.Parallel()
	s := newSite(t, fakevllm.Plain, "9100")
	s.up(fakevllm.RolePrefill, "7100", "7101")
	s.up(fakevllm.RoleDecode, "7200", "7201")
	s.start(lmcachePorts, overStore, "CLIENT_BOUND=true", "CLIENT_BOUND_KEY=session-id")
	s.await([]string{"7100", "7101"}, []string{"7200", "7201"})
	chat := strings.ReplaceAll(elasticChat, "8000", "9100")
	took := func() [4]int64 {
		return [4]int64{s.served("7100"), s.served("7101"), s.served("7200"), s.served("7201")}
	}
	seen := map[string]bool{}
	for i := range 12 {
		before := took()
		for range 3 {
			s.serves(strings.Replace(chat, ` \`, fmt.Sprintf(` -H "session-id: 7e2c-%d" \`, i), 1), "hello", 50)
		}
		after := took()
		var share [4]int64
		for j := range share {
			share[j] = after[j] - before[j]
		}
		assert.True(t, (share[0] != 0) != (share[1] != 0) && (share[2] != 0) != (share[3] != 0),
			"session %d went to several instances: %v", i, share)
		seen[fmt.Sprint(share)] = true
	}
	assert.GreaterOrEqual(t, len(seen), 2, "all sessions are on one pair: %v", seen)
}
