package forward_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// All answers on one connection have the same header, whether or not the proxy remembers the engine's. They
// differ only in the id, and in the trace if the request asks for it.
func TestAnswersOfOneConnection(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	one := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	t.Cleanup(one.CloseIdleConnections)
	ids := map[string]bool{}
	want := map[bool]string{}
	for i := range 24 {
		stream, trace, wrong := i%4 == 3, i%5 == 4, i%7 == 6
		body := chatBody(stream, strings.Repeat(" ", i))
		if wrong {
			body = "{"
		}
		q := newRequest(t.Context(), t, http.MethodPost, r.URL+chatPath, strings.NewReader(body))
		if trace {
			q.Header.Set("X-PD-Trace", "1")
		}
		a := do(one, q)
		status := map[bool]int{false: 200, true: 400}[wrong]
		require.True(t, a.err == nil && a.status == status, "request %d: %d %s, %v", i, a.status, a.body, a.err)
		id := a.header.Values("X-Request-Id")
		assert.True(t, len(id) == 1 && len(id[0]) == 36 && !ids[id[0]], "request %d: ids %q", i, id)
		ids[id[0]] = true
		if (a.header.Get("X-PD-Policy") != "") != trace {
			t.Errorf("request %d: traced is %v in %v", i, !trace, a.header)
		}
		if wrong {
			continue
		}
		var names []string
		for name, values := range a.header {
			if name != "X-Request-Id" && !strings.HasPrefix(name, "X-Pd-") && name != "Date" && name != "Content-Length" {
				names = append(names, name+": "+strings.Join(values, ", "))
			}
		}
		slices.Sort(names)
		if all := strings.Join(names, "\n"); want[stream] == "" {
			want[stream] = all
		} else if all != want[stream] {
			t.Errorf("request %d, stream %v: %q, the first had %q", i, stream, all, want[stream])
		}
	}
	if r.checkEngines(); len(want) != 2 || !strings.Contains(want[false], "application/json") {
		t.Errorf("%v", want)
	}
}
