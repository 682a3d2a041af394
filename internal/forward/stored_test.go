package forward_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// stored creates a stored response and returns its id.
func (r *rig) stored(more string) string {
	r.t.Helper()
	a := r.post(responsesPath, agentBody(responsesPath, false, more))
	var v struct{ ID string }
	if err := json.Unmarshal(a.body, &v); err != nil || a.status != http.StatusOK || v.ID == "" {
		r.t.Fatalf("%d %s", a.status, a.body)
	}
	return v.ID
}

// sendBodiless sends a request without a body.
func (r *rig) sendBodiless(method, path string) (status int, body string) {
	r.t.Helper()
	a := do(http.DefaultClient, newRequest(r.t.Context(), r.t, method, r.URL+path, nil))
	require.NoError(r.t, a.err)
	return a.status, string(a.body)
}

// storedRequests returns the number of requests about responses that decode instances have received.
func (r *rig) storedRequests() (n int) {
	for _, d := range r.D {
		for _, q := range d.Requests() {
			if strings.HasPrefix(q.Path, responsesPath) { // not a probe
				n++
			}
		}
	}
	return n
}

// Any proxy queries the correct instance for a stored response at once: the id names the instance, so proxies
// keep no state.
func TestStoredResponses_FoundByID(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 4, nil)
	for range 8 {
		id := r.stored("")
		before := r.storedRequests()
		status, body := r.sendBodiless(http.MethodGet, responsesPath+"/"+id)
		require.True(t, status == http.StatusOK && strings.Contains(body, `"id":"`+id+`"`), "%d %s", status, body)
		a := r.post(responsesPath, agentBody(responsesPath, false, `,"previous_response_id":"`+id+`"`))
		require.True(t, a.status == http.StatusOK && a.header.Get("X-PD-Decode-Only") == bypass.StoredResponse,
			"%d %s", a.status, a.body)
		assert.Equal(t, 2, r.storedRequests()-before, "requests for two")
	}
	r.noneTroubled()
	r.checkEngines()
}

// An id chosen by the client names no instance, so each instance is queried once.
func TestStoredResponses_ClientID(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 3, nil)
	id := r.stored(`,"request_id":"resp_mine"`)
	require.Equal(t, "resp_mine", id)
	if status, body := r.sendBodiless(http.MethodGet, responsesPath+"/resp_mine"); status != http.StatusOK || !strings.Contains(body, `"resp_mine"`) {
		t.Errorf("%d %s", status, body)
	}
	before := r.storedRequests()
	status, body := r.sendBodiless(http.MethodGet, responsesPath+"/resp_nobodys")
	if status != http.StatusNotFound || !strings.Contains(body, "Response with id 'resp_nobodys' not found.") || r.storedRequests()-before != 3 {
		t.Errorf("%d %s after %d questions", status, body, r.storedRequests()-before)
	}
	// The answer of an instance without this route does not reach the client.
	for _, d := range r.D {
		r.script(d, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusNotFound, Body: `{"detail":"Not Found"}`, Times: 1})
		if status, body := r.sendBodiless(http.MethodGet, responsesPath+"/resp_nobodys"); status != http.StatusNotFound || !strings.Contains(body, "Response with id 'resp_nobodys' not found.") {
			t.Errorf("%d %s", status, body)
		}
	}
	r.noneTroubled()
}

// An id that is escaped in the path reaches the engine as the client chose it.
func TestStoredResponses_EscapedID(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	for id, escaped := range map[string]string{"resp_10:54": "resp_10%3A54", "resp_a b": "resp_a%20b", "resp_50%": "resp_50%25", "resp_é": "resp_%C3%A9"} {
		require.Equal(t, id, r.stored(`,"request_id":"`+id+`"`))
		status, body := r.sendBodiless(http.MethodGet, responsesPath+"/"+escaped)
		assert.True(t, status == http.StatusOK && strings.Contains(body, `"id":"`+id+`"`), "%s: %d %s", id, status, body)
	}
	// A question mark would begin the query string: no instance is queried for the shortened id.
	before := r.storedRequests()
	status, body := r.sendBodiless(http.MethodGet, responsesPath+"/resp_10:54%3Fx")
	if status != http.StatusNotFound || !strings.Contains(body, "Response with id 'resp_10:54?x' not found.") || r.storedRequests() != before {
		t.Errorf("%d %s", status, body)
	}
	r.noneTroubled()
}

// A stored response is lost when its engine restarts or its instance leaves.
func TestStoredResponses_LostWithEngine(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	id := r.stored("")
	notFound := "Response with id '" + id + "' not found."
	r.D[0].Kill()
	require.NoError(t, r.D[0].Restart(t.Context()))
	status, body := r.sendBodiless(http.MethodGet, responsesPath+"/"+id)
	assert.True(t, status == http.StatusNotFound && strings.Contains(body, notFound), "%d %s", status, body)
	a := r.post(responsesPath, agentBody(responsesPath, false, `,"previous_response_id":"`+id+`"`))
	r.entry() // created it
	r.entry() // queried it
	if f := r.entry().Failure; a.status != http.StatusNotFound || !strings.Contains(string(a.body), notFound) || f != leg.Status4xx {
		t.Errorf("%d %s, logged as %s", a.status, a.body, f)
	}
	r.members.remove(r.D[0])
	if status, body := r.sendBodiless(http.MethodGet, responsesPath+"/"+id); status != http.StatusNotFound || !strings.Contains(body, notFound) {
		t.Errorf("%d %s", status, body)
	}
	a = r.post(responsesPath, agentBody(responsesPath, true, `,"previous_response_id":"`+id+`"`))
	if a.status != http.StatusNotFound || !strings.Contains(string(a.body), notFound) || a.header.Get("X-PD-Decode-Only") != "" {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
}

// An instance that breaks the first connection may still have the response: it is queried
// again.
func TestStoredResponses_QueriedAgain(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 2, nil)
	id := r.stored("")
	for _, d := range r.D {
		r.script(d, fakevllm.Fault{Kind: fakevllm.FaultClose, At: fakevllm.AfterRead, Times: 1})
	}
	a := r.post(responsesPath, agentBody(responsesPath, true, `,"previous_response_id":"`+id+`"`))
	assert.True(t, a.status == http.StatusOK && a.err == nil, "%d %v %s", a.status, a.err, a.body)
}

// While an instance is unreachable, the proxy cannot know whether it has the response.
func TestStoredResponses_Unreachable(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 2, nil)
	id := r.stored("")
	for _, d := range r.D {
		d.Kill()
	}
	status, body := r.sendBodiless(http.MethodGet, responsesPath+"/"+id)
	assert.Equal(t, http.StatusServiceUnavailable, status, body)
	e := r.entry()
	assert.Equal(t, responsesPath, e.Endpoint, "entry %+v", e)
	if e := r.entry(); e.Endpoint != "/v1/responses/{response_id}" || e.Outcome != relay.OutcomeUnavailable || e.Method != http.MethodGet {
		t.Errorf("entry %+v", e)
	}
}

// A background response can be polled until it ends, and can be cancelled.
func TestResponsesInTheBackground(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 3, nil)
	id := r.stored(`,"background":true`)
	e := r.entry()
	assert.Equal(t, "background", e.DecodeOnly, "entry %+v", e)
	deadline := time.Now().Add(waitLimit)
	for {
		status, body := r.sendBodiless(http.MethodGet, responsesPath+"/"+id)
		require.True(t, status == http.StatusOK && !time.Now().After(deadline), "%d %s", status, body)
		if strings.Contains(body, `"status":"incomplete"`) || strings.Contains(body, `"status":"completed"`) {
			break
		}
	}
	for _, d := range r.D {
		r.script(d, fakevllm.Fault{Kind: fakevllm.FaultSlow, TTFT: time.Hour, Times: 1})
	}
	if status, body := r.sendBodiless(http.MethodPost, responsesPath+"/"+id+"/cancel"); status != http.StatusBadRequest || !strings.Contains(body, "Cannot cancel a synchronous response.") {
		t.Errorf("%d %s", status, body)
	}
	slow := r.stored(`,"background":true`)
	if status, body := r.sendBodiless(http.MethodPost, responsesPath+"/"+slow+"/cancel"); status != http.StatusOK || !strings.Contains(body, `"status":"cancelled"`) {
		t.Errorf("%d %s", status, body)
	}
}

// A background stream has the same events as any other.
func TestResponsesInTheBackground_Stream(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	want, _ := r.post(responsesPath, agentBody(responsesPath, true, "")).agentText(t)
	stream := r.post(responsesPath, agentBody(responsesPath, true, `,"background":true`))
	if text, names := stream.agentText(t); stream.err != nil || text != want || names != wholeStream(responsesPath) {
		t.Errorf("%d %v %q, %s: %s", stream.status, stream.err, text, names, stream.body)
	}
}

// An instance is queried for stored responses even if it gets no new work.
func TestStoredResponses_AnyInstance(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*instance.Instance){
		"draining":          func(in *instance.Instance) { in.Intent = instance.Drain },
		"unknown connector": func(in *instance.Instance) { in.Record.Connector = "teleport" },
		"not verified":      func(in *instance.Instance) { in.View, in.Verified = instance.Unverified, false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 1, 1, nil)
			id := r.stored("")
			r.members.changeAt(r.D[0], change)
			status, body := r.sendBodiless(http.MethodGet, responsesPath+"/"+id)
			assert.Equal(t, http.StatusOK, status, body)
			a := r.post(responsesPath, agentBody(responsesPath, true, `,"previous_response_id":"`+id+`"`))
			assert.True(t, a.status == http.StatusOK && a.err == nil, "%d %v %s", a.status, a.err, a.body)
		})
	}
}

// Before the proxy has read the membership, it cannot know which instance has a response.
func TestStoredResponses_MembershipUnread(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	id := r.stored("")
	r.members.p.Store(instance.NewSnapshot(0, nil))
	status, body := r.sendBodiless(http.MethodGet, responsesPath+"/"+id)
	assert.Equal(t, http.StatusServiceUnavailable, status, body)
}
