package answers

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// tolerance is the maximum difference of two floating-point results of the same computation in a different
// order.
const tolerance = 1e-3

// Difference is a position at which two answers differ.
type Difference struct {
	Path      string // member names and element indices, separated by dots
	Want, Got string // JSON, or "nothing"
}

func (d Difference) String() string {
	return fmt.Sprintf("%s: %s, want %s", d.Path, d.Got, d.Want)
}

// Compare returns the differences between an answer and the expected one.
func Compare(want, got Answer) []Difference {
	var out []Difference
	compare("", map[string]any(want), map[string]any(got), &out)
	return out
}

func compare(path string, want, got any, out *[]Difference) {
	switch w := want.(type) {
	case map[string]any:
		if g, ok := got.(map[string]any); ok {
			names := slices.Collect(maps.Keys(w))
			for name := range g {
				if _, ok := w[name]; !ok {
					names = append(names, name)
				}
			}
			slices.Sort(names)
			for _, name := range names {
				at := join2(path, name)
				wv, inWant := w[name]
				gv, inGot := g[name]
				switch {
				case !inGot:
					*out = append(*out, Difference{at, show(wv), "nothing"})
				case !inWant:
					*out = append(*out, Difference{at, "nothing", show(gv)})
				default:
					compare(at, wv, gv, out)
				}
			}
			return
		}
	case []any:
		if g, ok := got.([]any); ok && len(g) == len(w) {
			for i := range w {
				compare(join2(path, fmt.Sprint(i)), w[i], g[i], out)
			}
			return
		}
	case float64:
		if g, ok := got.(float64); ok && (w == g || w != math.Trunc(w) && math.Abs(w-g) <= tolerance) {
			return
		}
	default:
		if want == got { // strings, booleans, null
			return
		}
	}
	*out = append(*out, Difference{path, show(want), show(got)})
}

func join2(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func show(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	const most = 300
	if s := strings.ToValidUTF8(string(raw), "?"); len(s) > most {
		return s[:most] + "..."
	}
	return string(raw)
}
