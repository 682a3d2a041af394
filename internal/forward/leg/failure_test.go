package leg

import (
	"testing"

	"github.com/stretchr/testify/assert"
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

// Only an event with 400 to 499 is the client's mistake; 408 and 425 ask for another attempt.
func TestErrorEvent_ClassByCode(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]Class{400: Status4xx, 408: ErrorEvent, 425: ErrorEvent, 422: Status4xx, 499: Status4xx, 500: ErrorEvent} {
		f := testLeg(t).JudgeEvent(code, []byte(`{"error":{"message":"x"}}`))
		assert.Equal(t, want, f.Class, code)
	}
}
