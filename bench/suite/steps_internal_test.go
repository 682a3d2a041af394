package suite

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/bench/target"
)

func TestSteps(t *testing.T) {
	t.Parallel()
	workloads := []Workload{{Name: "first"}, {Name: "small", Beside: true}, {Name: "quiet", Membership: true, Turns: 2}, {Name: "churn", Membership: true, Turns: 2}, {Name: "last"}}
	targets := []target.Spec{{Name: "two-hop", Kind: target.TwoHop}, {Name: "floor", Kind: target.Floor}, {Name: "ours", Kind: target.Mesh}}
	var got []string
	for _, s := range steps(workloads, targets) {
		var together []string
		for _, p := range s.pairs {
			together = append(together, p.workload.Name+" "+p.spec.Name)
		}
		got = append(got, fmt.Sprintf("%s %d", strings.Join(together, ", "), s.turn))
	}
	want := []string{
		"first two-hop 0", "first floor 0", "first ours 0",
		"small two-hop, small floor, small ours 0",
		"quiet floor, churn floor 0", "quiet floor, churn floor 1",
		"quiet ours, churn ours 0", "quiet ours, churn ours 1",
		"last two-hop 0", "last floor 0", "last ours 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("steps\n%q, want\n%q", got, want)
	}
}
