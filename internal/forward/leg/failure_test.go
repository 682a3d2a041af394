package leg

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
)

// The buffer of a stream goes back to its pool before the client gets the failure: the
// text of an error event must be a copy.
func TestErrorEvent_CopiesText(t *testing.T) {
	t.Parallel()
	const text = `{"error":{"message":"too long","code":400}}`
	event := []byte("data: " + text + "\n\n")
	f := testLeg(t).JudgeEvent(400, sse.ErrorOf(openai.Chat, event))
	for i := range event {
		event[i] = '#' // the next stream reuses the buffer
	}
	require.True(t, f.Class == Status4xx && f.Answer.Status == 400 && string(f.Answer.Body) == text,
		"%s %d %s", f.Class, f.Answer.Status, f.Answer.Body)
}

func TestErrorEvent_InvalidJSON(t *testing.T) {
	t.Parallel()
	f := testLeg(t).JudgeEvent(0, sse.ErrorOf(openai.Chat, []byte("data:{\"error\":00\n\n")))
	require.True(t, f.Class == BadAnswer && f.Answer.Own != nil && f.Answer.Own.Status == 502,
		"%s %+v", f.Class, f.Answer)
}
