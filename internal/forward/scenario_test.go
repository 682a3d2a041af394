package forward_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
)

const chatPath = "/v1/chat/completions"

// scenario is a request to one of the APIs that generate. /v1/completions takes the same path as chats and
// has separate tests.
type scenario struct {
	path   string
	stream bool
}

func (q scenario) String() string {
	return fmt.Sprintf("%s stream=%v", q.path[strings.Index(q.path, "v1/")+3:], q.stream)
}

// apis returns the paths over which every scenario runs.
func apis() []string { return []string{chatPath, responsesPath, messagesPath, generatePath} }

// eachAPI runs a scenario over every API, for whole answers, streams or both.
func eachAPI(t *testing.T, streams []bool, f func(t *testing.T, q scenario)) {
	t.Helper()
	for _, path := range apis() {
		for _, stream := range streams {
			q := scenario{path, stream}
			t.Run(q.String(), func(t *testing.T) {
				t.Parallel()
				f(t, q)
			})
		}
	}
}

func streamed() []bool { return []bool{true} }
func both() []bool     { return []bool{true, false} }

// eachSequential runs a scenario over every sequential dialect, streaming and not, and over every API for
// Plain and NIXL, of which the others are variants. The short form runs half of that: every dialect, every
// API, and both kinds of answer of every API.
func eachSequential(t *testing.T, f func(t *testing.T, mode fakevllm.Mode, q scenario)) {
	t.Helper()
	for i, mode := range sequentialModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			if !longform.Run() {
				someScenarios(t, i, mode, f)
				return
			}
			if mode != fakevllm.Plain && mode != fakevllm.NIXL { // the others differ only in their legs
				chats(t, func(t *testing.T, q scenario) { f(t, mode, q) })
				return
			}
			eachAPI(t, both(), func(t *testing.T, q scenario) { f(t, mode, q) })
		})
	}
}

// someScenarios runs a scenario over the i-th dialect, alternating between streams and whole answers.
func someScenarios(t *testing.T, i int, mode fakevllm.Mode, f func(t *testing.T, mode fakevllm.Mode, q scenario)) {
	t.Helper()
	paths := []string{chatPath}
	if mode == fakevllm.Plain || mode == fakevllm.NIXL {
		paths = apis()
	}
	for j, path := range paths {
		q := scenario{path, (i+j)%2 == 0}
		t.Run(q.String(), func(t *testing.T) {
			t.Parallel()
			f(t, mode, q)
		})
	}
}

// chats runs a scenario over chats, streaming and not.
func chats(t *testing.T, f func(t *testing.T, q scenario)) {
	t.Helper()
	for _, stream := range both() {
		t.Run(scenario{chatPath, stream}.String(), func(t *testing.T) {
			t.Parallel()
			f(t, scenario{chatPath, stream})
		})
	}
}

// eachSequentialChat runs a scenario of chats over every sequential dialect. It omits the two agent APIs,
// whose answers do not show an abort.
func eachSequentialChat(t *testing.T, f func(t *testing.T, mode fakevllm.Mode, q scenario)) {
	t.Helper()
	for i, mode := range sequentialModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			if !longform.Run() {
				q := scenario{chatPath, i%2 == 0}
				t.Run(q.String(), func(t *testing.T) { f(t, mode, q) })
				return
			}
			chats(t, func(t *testing.T, q scenario) { f(t, mode, q) })
		})
	}
}

// ends reports whether a stream is complete.
func (q scenario) ends(stream string) bool {
	last := stream[max(strings.LastIndex(stream, "event: "), 0):]
	switch q.path {
	case responsesPath:
		return strings.HasPrefix(last, "event: response.completed\n") && strings.HasSuffix(last, "}\n\n")
	case messagesPath:
		return last == "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	}
	return strings.HasSuffix(stream, "data: [DONE]\n\n")
}

// body returns the body of the request, with more fields after the others.
func (q scenario) body(more string) string {
	if q.path == chatPath {
		return chatBody(q.stream, more)
	}
	if q.path == generatePath {
		body := tokensBody(q.stream, "")
		return body[:len(body)-1] + more + "}"
	}
	return agentBody(q.path, q.stream, more)
}

// postScenario sends the request of a scenario.
func (r *rig) postScenario(q scenario, header ...string) answer {
	r.t.Helper()
	return r.post(q.path, q.body(""), header...)
}

// checkWhole checks that an answer is complete and has the text of the model.
func (r *rig) checkWhole(q scenario, a answer) {
	r.t.Helper()
	if q.path == chatPath {
		r.checkComplete(a, true, q.body(""))
		return
	}
	if q.path == generatePath {
		r.checkTokensAnswer(a, q.body(""))
		return
	}
	r.checkAgentAnswer(a, q.path, q.body(""))
}

// checkServed sends the request and checks its answer.
func (r *rig) checkServed(q scenario, header ...string) {
	r.t.Helper()
	r.checkWhole(q, r.postScenario(q, header...))
}

// checkRefused checks that an answer is an error in the format of its API, and not a stream.
func (r *rig) checkRefused(q scenario, a answer, status int, says string) {
	r.t.Helper()
	begins := `{"error":{`
	if q.path == messagesPath {
		begins = `{"type":"error","error":{`
	}
	if a.err != nil || a.status != status || !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") ||
		!strings.HasPrefix(string(a.body), begins) || !strings.Contains(string(a.body), says) {
		r.t.Fatalf("%d %v, %v: %s", a.status, a.header, a.err, a.body)
	}
}

// checkBroken checks that a committed stream has ended with an error in the format of its API, and not
// cleanly.
func (r *rig) checkBroken(q scenario, a answer) {
	r.t.Helper()
	require.True(r.t, a.status == http.StatusOK && a.err != nil,
		"status %d, err %v: a cut stream ended cleanly: %s", a.status, a.err, a.body)
	event := "data: {\"error\":"
	if q.path != chatPath && q.path != generatePath {
		event = "event: error\ndata: {\"type\":\"error\","
	}
	i := strings.LastIndex(string(a.body), event)
	require.True(r.t, i >= 0 && strings.Count(string(a.body[i:]), "\n\n") == 1, "its last event is no error: %s", a.body)
	for _, end := range []string{"[DONE]", "message_stop", "response.completed", "response.incomplete"} {
		require.NotContains(r.t, string(a.body), end, "%s: %s", end, a.body)
	}
}
