package migrate_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// neighbour returns a second site on the same machine with engines of the same model, whose proxy finds
// the first one's etcd.
func neighbour(t *testing.T, first *site) *site {
	s := elasticSite(t)
	s.release(strings.TrimPrefix(s.etcd, "127.0.0.1:"))
	s.etcd = first.etcd
	return s
}

// Two elastic proxies on one machine, as two scripts on two ports, form separate fleets.
func TestTwoCommandLines_SeparateFleets(t *testing.T) {
	t.Parallel()
	a := elasticSite(t)
	p := a.start(elasticStart, "ADMIN_API_KEY="+adminKey)
	a.await([]string{"8100", "8101"}, []string{"8200", "8201"})
	b := neighbour(t, a)
	q := b.start(elasticStart, "ADMIN_API_KEY="+adminKey)
	b.await([]string{"8100", "8101"}, []string{"8200", "8201"})
	a.await([]string{"8100", "8101"}, []string{"8200", "8201"})

	all := []string{"8100", "8101", "8200", "8201"}
	for range 8 {
		a.serves(elasticCompletion, "hello", 50)
	}
	assert.EqualValues(t, 0, b.served(all...), "requests for the first fleet went to the second")
	before := a.served(all...)
	for range 8 {
		b.serves(elasticChat, "hello", 50)
	}
	assert.Equal(t, before, a.served(all...), "requests for the second fleet went to the first")

	// An instance added through one proxy belongs to that proxy's fleet, even if it was pending.
	a.up(fakevllm.RolePrefill, "8102")
	a.answers(at(elasticAdd, "8102"), 200, `{"message":"Added 127.0.0.1:8102 to prefill_instances."}`, lists...)
	a.reserve("8103")
	a.answers(at(elasticAdd, "8103"), 200, `{"message":"Waiting for prefill_instance 127.0.0.1:8103 to start."}`, lists...)
	a.up(fakevllm.RolePrefill, "8103")
	a.await([]string{"8100", "8101", "8102", "8103"}, []string{"8200", "8201"})
	b.await([]string{"8100", "8101"}, []string{"8200", "8201"})
	// The other fleet does not know it until it adds it too; then each fleet may remove it.
	b.ports["8102"] = a.ports["8102"]
	b.answers(at(elasticRemove, "8102"), 404, `{"message":"Instance 127.0.0.1:8102 is not in the prefill_instances."}`, "error")
	b.answers(at(elasticAdd, "8102"), 200, `{"message":"Added 127.0.0.1:8102 to prefill_instances."}`, lists...)
	b.await([]string{"8100", "8101", "8102"}, []string{"8200", "8201"})
	b.answers(at(elasticRemove, "8102"), 200, `{"message":"Removed 127.0.0.1:8102 from prefill_instances."}`, lists...)
	b.await([]string{"8100", "8101"}, []string{"8200", "8201"})
	a.await([]string{"8100", "8101", "8102", "8103"}, []string{"8200", "8201"})

	// A shorter command line of one proxy removes only its own instances.
	b.record(instance.Decode, "8201")
	b.stop(q)
	q = b.start(strings.Replace(elasticStart, "localhost:8200 localhost:8201", "localhost:8200", 1), "ADMIN_API_KEY="+adminKey)
	b.await([]string{"8100", "8101"}, []string{"8200"})
	awaitLog(t, q, b.text("decode/127.0.0.1:8201 was on an earlier command line of this proxy"))
	a.await([]string{"8100", "8101", "8102", "8103"}, []string{"8200", "8201"})

	// An instance that registers itself is used by both fleets.
	e := fakevllm.StartTest(t, a.engine(fakevllm.RoleDecode, ""))
	cli := etcdtest.Client(t, a.etcd)
	if _, err := cli.Put(t.Context(), "/pd/decode/"+e.Address(), ""); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*site{a, b} {
		testkit.Until(t, soon, s.status, func(st status) bool { return slices.Contains(st.DecodeNodes, e.Address()) })
	}

	// A proxy that loses an instance of its command line logs it.
	out, err := b.fleet.Start(t.Context(), fleet.Spec{
		Name: "pdctl", Program: "pdctl", Args: []string{"--etcd-endpoints", a.etcd, "remove", "--yes", "prefill", "127.0.0.1:" + a.ports["8100"], "--reason", "under repair"},
	})
	require.NoError(t, err)
	<-out.Done()
	awaitLog(t, p, a.text("prefill/127.0.0.1:8100 of the command line"))
	b.awaitPrefill(t, []string{"8100", "8101"})

	// The instances of the other command line are shown, marked as elsewhere.
	shown := 0
	for _, in := range b.status().Instances {
		if in.View == instance.Elsewhere {
			shown++
		}
	}
	assert.NotEqual(t, 0, shown, "the instances of the other fleet are not shown")
	a.strict(true)
	b.strict(true)
}

// awaitPrefill waits until exactly these prefill instances are used.
func (s *site) awaitPrefill(t *testing.T, prefill []string) {
	t.Helper()
	want := s.addresses(prefill...)
	testkit.Until(t, soon, s.status, func(st status) bool { return slices.Equal(st.PrefillNodes, want) })
}
