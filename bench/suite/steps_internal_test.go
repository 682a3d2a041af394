package suite

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pdmesh/pdmesh/bench/target"
)

func TestSteps(t *testing.T) {
	t.Parallel()
	workloads := []Workload{{Name: "small"}, {Name: "quiet", Membership: true, Turns: 2}, {Name: "churn", Membership: true, Turns: 2}, {Name: "last"}}
	targets := []target.Spec{{Name: "two-hop", Kind: target.TwoHop}, {Name: "floor", Kind: target.Floor}, {Name: "ours", Kind: target.Mesh}}
	var got []string
	for _, s := range steps(workloads, targets) {
		for _, w := range s.workloads {
			got = append(got, fmt.Sprintf("%s %s %d", w.Name, s.spec.Name, s.turn))
		}
	}
	want := []string{
		"small two-hop 0", "small floor 0", "small ours 0",
		"quiet floor 0", "churn floor 0", "quiet floor 1", "churn floor 1",
		"quiet ours 0", "churn ours 0", "quiet ours 1", "churn ours 1",
		"last two-hop 0", "last floor 0", "last ours 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("steps\n%q, want\n%q", got, want)
	}
}
