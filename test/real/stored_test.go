package real_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// storedResponses creates, retrieves and continues responses, and checks by the engines' own counters that
// only the engine that stores a response is queried.
func (r *rig) storedResponses(t *testing.T, decode []*engine) {
	requests := func() (n float64) {
		for _, e := range decode {
			n += r.metric(e, "http_requests_total", `handler="/v1/responses/{response_id}"`)
		}
		return n
	}
	call := func(method, path, body string, status int) (id string) {
		t.Helper()
		got, answer, err := r.call(method, path, body)
		if err != nil || got != status {
			t.Fatalf("%s %s: %d, %v: %s", method, path, got, err, answer)
		}
		var v struct{ ID string }
		if err := json.Unmarshal(answer, &v); err != nil {
			t.Fatalf("%v: %s", err, answer)
		}
		return v.ID
	}
	const path = "/v1/responses"
	before := requests()
	const rounds = 4
	for i := range rounds {
		id := call(http.MethodPost, path, fmt.Sprintf(`{"model":"tiny","max_output_tokens":8,"temperature":0,"input":"Round %d"}`, i), http.StatusOK)
		if got := call(http.MethodGet, path+"/"+id, "", http.StatusOK); got != id {
			t.Errorf("requested %s, got %s", id, got)
		}
		call(http.MethodPost, path, fmt.Sprintf(`{"model":"tiny","max_output_tokens":8,"temperature":0,"input":"And then?","previous_response_id":%q}`, id), http.StatusOK)
	}
	if n := requests() - before; n != rounds {
		t.Errorf("%v queries for %d stored responses", n, rounds)
	}
	queued := call(http.MethodPost, path, `{"model":"tiny","max_output_tokens":400,"background":true,"input":"Long"}`, http.StatusOK)
	call(http.MethodPost, path+"/"+queued+"/cancel", "", http.StatusOK)
	if !strings.HasPrefix(queued, "resp_") {
		t.Errorf("invalid ID %s", queued)
	}
}
