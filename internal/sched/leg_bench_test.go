package sched

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

type idleLeg struct{}

func (idleLeg) CallOff(error)        {}
func (idleLeg) Overtaken(int)        {}
func (idleLeg) Silent(time.Duration) {}

// BenchmarkLeg is what the scheduler does for one leg, with few instances and with many. The
// processor's caches are filled with other data every 128 legs, as the other work of
// requests does: with many instances the data of one is out of them when its turn comes.
func BenchmarkLeg(b *testing.B) {
	for _, n := range []int{4, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := make([]*instance.Instance, n)
			for i := range all {
				all[i] = &instance.Instance{
					Key:      instance.Key{Role: instance.Roles()[i%2], Address: fmt.Sprintf("10.0.%d.%d:8000", i>>8, i&255)},
					Verified: true,
					Record:   instance.Record{ID: fmt.Sprint("life-", i), Models: []string{"m"}, State: instance.Ready, Connector: "plain"},
				}
			}
			src := &fixed{instance.NewSnapshot(1, all)}
			s := schedulerOf(src)
			other := make([]byte, 64<<20)
			const legs = 128
			var took []time.Duration
			for b.Loop() {
				for i := 0; i < len(other); i += 64 {
					other[i]++
				}
				begun := time.Now()
				for range legs {
					a, err := s.Pick(Request{Role: instance.Decode, Model: "m"})
					require.NoError(b, err)
					a.Await(idleLeg{}, begun)
					require.NoError(b, s.Removed(a))
					a.EndAwait()
					a.Done()
				}
				took = append(took, time.Since(begun)/legs)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "median-ns/leg")
		})
	}
}
