package suite

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/bench/target"
)

// It begins when the machine is about as good as it was, or when patience ends.
func TestCalm(t *testing.T) {
	t.Parallel()
	errProbe := errors.New("no answer")
	for _, tc := range []struct {
		name     string
		patience time.Duration
		probes   []float64 // one after the other, the last again and again; 0 fails
		waits    int
		begun    []float64
		anyway   int
		waited   float64
	}{
		{"quiet at once", time.Minute, []float64{10, 11.5, 11}, 3, []float64{10, 11.5, 11}, 0, 0},
		{"quiet after a while", time.Minute, []float64{10, 20, 12, 11.4}, 2, []float64{10, 11.4}, 0, 2},
		{"never quiet again", 5 * time.Second, []float64{10, 20}, 3, []float64{10, 20, 20}, 2, 5},
		{"better than before", time.Minute, []float64{20, 10, 20, 11}, 3, []float64{20, 10, 11}, 0, 1},
		{"no probe", time.Minute, []float64{10, 0}, 2, []float64{10}, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				next := 0
				c := &calm{left: tc.patience, found: &report.Calm{}, pause: func(context.Context) { time.Sleep(probePause) }}
				c.probe = func(context.Context) (float64, error) {
					v := tc.probes[min(next, len(tc.probes)-1)]
					if next++; v == 0 {
						return 0, errProbe
					}
					return v, nil
				}
				for range tc.waits {
					c.wait(t.Context())
				}
				f := c.found
				if failed := tc.probes[len(tc.probes)-1] == 0; failed != (f.Problem != "") {
					t.Errorf("the problem is %q", f.Problem)
				}
				same := len(f.Begun) == len(tc.begun) && f.Anyway == tc.anyway && f.Waited == tc.waited
				for i := range f.Begun {
					same = same && f.Begun[i] == tc.begun[i]
				}
				if !same {
					t.Errorf("%+v", f)
				}
			})
		})
	}
	var none *calm
	none.wait(t.Context())
}

// Only what depends on how fast the machine is, and is judged, is worth waiting for.
func TestSensitive(t *testing.T) {
	t.Parallel()
	got := map[string]bool{}
	for _, s := range steps(Workloads(), []target.Spec{{Name: "direct", Kind: target.Direct}, {Name: "two-hop", Kind: target.TwoHop}, {Name: "pdmesh", Kind: target.Mesh}}) {
		for _, p := range s.pairs {
			got[p.workload.Name+" "+p.spec.Name] = s.sensitive()
		}
	}
	for name, want := range map[string]bool{
		"small direct": true, "small pdmesh": true, "open200 direct": false, "open200 two-hop": true, "open200 pdmesh": true,
		"open5000 pdmesh": false, "vanish5000 pdmesh": false, "churn pdmesh": true, "quiet pdmesh": true,
	} {
		if is, ok := got[name]; !ok || is != want {
			t.Errorf("%s: %v, known %v", name, is, ok)
		}
	}
}
