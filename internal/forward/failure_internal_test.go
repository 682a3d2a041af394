package forward

import (
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The buffer of a stream goes back to its pool before the client is told: what
// an error event said must not lie in it any more.
func TestErrorEventOwnsItsText(t *testing.T) {
	t.Parallel()
	const text = `{"error":{"message":"too long","code":400}}`
	event := []byte("data: " + text + "\n\n")
	f := (&exchange{}).ofEvent(&instance.Instance{}, 400, event)
	for i := range event {
		event[i] = '#' // the next stream
	}
	if f.class != Status4xx || f.answer.status != 400 || string(f.answer.body) != text {
		t.Fatalf("%s %d %s", f.class, f.answer.status, f.answer.body)
	}
}

func TestErrorEventThatIsNoJSON(t *testing.T) {
	t.Parallel()
	f := (&exchange{}).ofEvent(&instance.Instance{}, 0, []byte("data:{\"error\":00\n\n"))
	if f.class != BadAnswer || f.answer.own == nil || f.answer.own.Status != 502 {
		t.Fatalf("%s %+v", f.class, f.answer)
	}
}
