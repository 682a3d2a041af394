package dashboard

import (
	"encoding/json"
	"math"
	"testing"
)

func TestRingKeepsTheLast(t *testing.T) {
	t.Parallel()
	var r ring
	if r.line() != nil || r.last() != none {
		t.Error("an empty ring has points")
	}
	r.add(none)
	if r.line() != nil {
		t.Error("a ring in which nothing was measured has a line")
	}
	for i := range points + 5 {
		r.add(value(i))
	}
	line := r.line()
	if len(line) != points || line[0] != 5 || line[points-1] != points+4 || r.last() != points+4 {
		t.Errorf("%v", line)
	}
	r.add(none)
	b, err := json.Marshal(r.line()[points-3:])
	if want := "[63,64,null]"; err != nil || string(b) != want {
		t.Errorf("%s, %v; want %s", b, err, want)
	}
	for v, want := range map[value]string{0: "0", 0.123456: "0.123", 12.345: "12.3", 1234.5: "1234", value(math.NaN()): "null"} {
		if b, _ := json.Marshal(v); string(b) != want {
			t.Errorf("%v is written %s, want %s", float32(v), b, want)
		}
	}
}
