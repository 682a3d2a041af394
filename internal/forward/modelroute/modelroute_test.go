package modelroute_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward/modelroute"
	"github.com/pdmesh/pdmesh/internal/instance"
)

type source struct{ documents *instance.Documents }

func (s *source) Snapshot() *instance.Snapshot { return &instance.Snapshot{Documents: s.documents} }

// routes returns a route with targets a, b, ... of these weights; set changes the weights.
func routes(sticky string, weights ...int) (r *modelroute.Routes, set func(weights ...int)) {
	var s source
	r = modelroute.New(&s, func(*instance.Documents) []*modelroute.Route {
		one := &modelroute.Route{Name: "chat", Sticky: sticky}
		for i, w := range weights {
			name := string(rune('a' + i))
			one.Targets = append(one.Targets, &modelroute.Target{Name: name, Model: name, Weight: w})
		}
		return []*modelroute.Route{one}
	})
	return r, func(next ...int) { weights, s.documents = next, &instance.Documents{} }
}

func first(r *modelroute.Routes, session, key string) string {
	c := r.Find("chat").Begin(session, key)
	c.Next(func(*modelroute.Target) bool { return true })
	return c.Target.Name
}

// The share of each target follows its weight: exactly in any window of a split, and approximately among
// sticky clients. When weights change, only the necessary part of these clients moves.
func TestShares(t *testing.T) {
	t.Parallel()
	for _, weights := range [][]int{{70, 30}, {1, 1, 1}, {10000, 1}, {5, 0, 95}} {
		r, set := routes("", weights...)
		total := 0
		for _, w := range weights {
			total += w
		}
		counts, sides := map[string]int{}, map[string]string{}
		for i := range 10_000 {
			counts[first(r, "", "")]++
			id := fmt.Sprint("s", i)
			sides[id] = first(r, id, "")
		}
		sticky := map[string]int{}
		for id, side := range sides {
			if sticky[side]++; first(r, id, "") != side {
				t.Fatalf("%s left %s", id, side)
			}
		}
		for i, w := range weights {
			name, want := string(rune('a'+i)), float64(w)/float64(total)*10_000
			assert.True(t, !(math.Abs(float64(counts[name])-want) > 10) && !(math.Abs(float64(sticky[name])-want) > 150),
				"%v: %s got %d, sticky %d, want %.0f", weights, name, counts[name], sticky[name], want)
		}
		set(append([]int{weights[0] + total}, weights[1:]...)...)
		moved := 0
		for id, side := range sides {
			if now := first(r, id, ""); now != side {
				if moved++; now != "a" {
					t.Fatalf("%s went from %s to %s, which got no more", id, side, now)
				}
			}
		}
		if want := (1 - float64(weights[0])/float64(total)) * 5000; math.Abs(float64(moved)-want) > 200 {
			t.Errorf("%v: %d moved, want %.0f", weights, moved, want)
		}
	}
}

func TestSticky(t *testing.T) {
	t.Parallel()
	for sticky, want := range map[string][3]int{"": {1, 2, 2}, modelroute.ByKey: {2, 1, 2}, modelroute.ByNone: {2, 2, 2}} {
		r, _ := routes(sticky, 50, 50)
		for i, c := range [][2]string{{"same", ""}, {"", "same"}, {"", ""}} {
			seen := map[string]bool{}
			for range 20 {
				seen[first(r, c[0], c[1])] = true
			}
			assert.Len(t, seen, want[i], "sticky %q, %q", sticky, c)
		}
	}
}

// Targets that cannot be used are passed over, and used only if none can.
func TestNext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		usable, want string // the order in which targets come
		passed       string // after the first
	}{{"abc", "abc", ""}, {"bc", "bca", "a"}, {"c", "cab", "a b"}, {"", "abc", ""}} {
		r, _ := routes(modelroute.ByNone, 10000, 1, 0)
		choice := r.Find("chat").Begin("", "")
		usable := func(t *modelroute.Target) bool { return strings.Contains(c.usable, t.Name) }
		got := ""
		for n := 0; choice.Next(usable); n++ {
			if got += choice.Target.Name; n == 0 && strings.Join(choice.PassedOver, " ") != c.passed {
				t.Errorf("usable %q: passed over %v", c.usable, choice.PassedOver)
			}
		}
		if got != c.want || slices.Contains(choice.PassedOver, choice.Target.Name) && c.usable == "abc" {
			t.Errorf("usable %q: %s, want %s; passed over %v", c.usable, got, c.want, choice.PassedOver)
		}
	}
}

// The requests of a target that cannot be used are shared by the others by weight.
func TestNext_SharesOfPassedOver(t *testing.T) {
	t.Parallel()
	for _, weights := range [][]int{{50, 25, 25}, {25, 50, 25}, {60, 30, 10}} {
		r, _ := routes(modelroute.ByNone, weights...)
		moved, toB := 0, 0
		for range 10_000 {
			choice := r.Find("chat").Begin("", "")
			if choice.Next(func(t *modelroute.Target) bool { return t.Name != "a" }); len(choice.PassedOver) == 0 {
				continue
			}
			if moved++; choice.Target.Name == "b" {
				toB++
			}
		}
		want := float64(moved) * float64(weights[1]) / float64(weights[1]+weights[2])
		assert.True(t, !(math.Abs(float64(toB)-want) > 200) && moved != 0,
			"%v: b got %d of %d, want %.0f", weights, toB, moved, want)
	}
}
