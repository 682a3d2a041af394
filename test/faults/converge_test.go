package faults_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
	"github.com/pdmesh/pdmesh/test/harness"
)

// readiness is the summary of the membership that /readyz reports.
type readiness struct {
	Revision int64 `json:"revision"`
	Prefill  int   `json:"prefill_instances"`
	Decode   int   `json:"decode_instances"`
}

// Many instances register at an etcd that several proxy processes watch. Measures the time from the
// last acknowledged write until every proxy has all of them.
func TestFault16_ManyRegistrations(t *testing.T) {
	rowAlone(t, 16)
	n, proxies := fleetSize(), 3
	if n >= 10000 {
		proxies = 10
	}
	etcd := etcdtest.Start(t)
	r := &rig{t: t, f: harness.NewFleet(t, bin), etcd: []string{etcd.Endpoint()}}
	for i := range proxies {
		r.proxies = append(r.proxies, r.proxy(fmt.Sprintf("proxy-%d", i+1), "--instance-allow", "any"))
	}
	cli := etcd.Client(t)
	_, acked := registerMany(t, cli, n, 600)
	var last int64
	facts := keys(t, cli)
	for _, f := range facts {
		last = max(last, f.Mod)
	}
	for _, p := range r.proxies { // sequential: the slowest proxy determines the time
		testkit.Eventually(t, soon, func() error {
			var got readiness
			err := fetch(t.Context(), p.URL()+"/readyz", &got)
			if err != nil || got.Revision < last || got.Prefill+got.Decode != n {
				return fmt.Errorf("%s has %+v, etcd is at %d with %d instances, %w", p.Name(), got, last, n, err)
			}
			return nil
		})
	}
	took := time.Since(acked)
	measured(t, 16, fmt.Sprintf("%d registrations, %d proxy processes: last acknowledgement to all equal", n, proxies), took, 2*time.Second)
	l := members.Layout(t)
	for _, p := range r.proxies {
		s, err := fetchStatus(t.Context(), p)
		require.NoError(t, err)
		if len(s.Instances) != n {
			t.Errorf("%s shows %d instances of %d", p.Name(), len(s.Instances), n)
		}
		for _, in := range s.Instances {
			k := l.Instance(instance.Key{Role: in.Role, Address: in.Address})
			if in.Revision != facts[k].Mod || in.View != "" {
				t.Fatalf("%s shows %+v, etcd has %+v", p.Name(), in, facts[k])
			}
		}
	}
}
