package dashboard

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRingKeepsTheLast(t *testing.T) {
	t.Parallel()
	var r ring
	assert.True(t, r.line() == nil && r.last() == none, "an empty ring has points")
	r.add(none)
	assert.True(t, r.line() == nil, "a ring in which nothing was measured has a line")
	for i := range points + 5 {
		r.add(value(i))
	}
	line := r.line()
	assert.True(t, len(line) == points && line[0] == 5 && line[points-1] == points+4 && r.last() == points+4,
		"%v", line)
	r.add(none)
	b, err := json.Marshal(r.line()[points-3:])
	want := "[63,64,null]"
	assert.True(t, err == nil && string(b) == want, "%s, %v; want %s", b, err, want)
	for v, want := range map[value]string{0: "0", 0.123456: "0.123", 12.345: "12.3", 1234.5: "1234", value(math.NaN()): "null"} {
		if b, _ := json.Marshal(v); string(b) != want {
			t.Errorf("%v is written %s, want %s", float32(v), b, want)
		}
	}
}
