package upstream

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// BenchmarkHost is the way of one leg to its connection and back, with few
// instances and with many. The caches are filled with other things every 128
// legs, as the rest of the requests does.
func BenchmarkHost(b *testing.B) {
	for _, n := range []int{4, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := NewPool(Options{IdleTimeout: time.Hour})
			defer p.Close()
			all := make([]*instance.Instance, n)
			places := make([]Place, n)
			for i := range all {
				all[i] = &instance.Instance{
					Key:    instance.Key{Role: instance.Roles()[i%2], Address: fmt.Sprintf("10.0.%d.%d:8000", i>>8, i&255)},
					Record: instance.Record{ID: fmt.Sprint("life-", i)},
				}
				h, _ := p.enter(all[i], &places[i])
				p.release(&conn{host: h, generation: h.generation, abort: func() {}}, true)
			}
			other := make([]byte, 64<<20)
			const legs = 128
			var took []time.Duration
			i := 0
			for b.Loop() {
				for i := 0; i < len(other); i += 64 {
					other[i]++
				}
				begun := time.Now()
				for range legs {
					r := Request{Instance: all[i%n], Place: &places[i%n]}
					i++
					if !r.plain() {
						b.Fatal(r)
					}
					h, _ := p.enter(r.Instance, r.Place)
					c := p.reuse(h, time.Time{}, true)
					if c == nil {
						b.Fatal("no connection")
					}
					p.release(c, true)
				}
				took = append(took, time.Since(begun)/legs)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "median-ns/leg")
		})
	}
}
