package forward_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// serveCORS starts another server of the rig, which pages of one origin may use.
func (r *rig) serveCORS() (url string) {
	r.t.Helper()
	d, first := r.deps, r.stop
	d.CORS = httpapi.CORS{Origins: []string{"https://a.example"}, Methods: []string{"*"}, Headers: []string{"*"}}
	url = r.serve(d)
	second := r.stop
	r.stop = func() { first(); second() }
	return url
}

// An engine's CORS headers do not reach a page: the proxy decides what pages may do.
func TestCORS_EngineHeadersRemoved(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 0, 0, nil)
	var asked atomic.Int64
	r.members.set(handlerEngine(t, instance.Decode, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header()["Vary"] = []string{"Accept-Language, Origin"}
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Access-Control-Allow-Credentials", "true")
		_, _ = io.WriteString(w, `{}`)
	}))
	plain, pages := r.URL, r.serveCORS()
	for _, url := range []string{plain, pages} {
		r.URL = url
		a := r.post("/tokenize", `{"model":"m","prompt":"a"}`, "Origin", "https://b.example")
		if a.status != http.StatusOK || a.header.Get("Access-Control-Allow-Origin") != "" || a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%d %v", a.status, a.header)
		}
		want := "Accept-Language, Origin"
		if url == pages {
			want = "Origin, Accept-Language, Origin"
		}
		assert.Equal(t, want, strings.Join(a.header["Vary"], ", "), "Vary")
	}
	assert.True(t, asked.Load() != 0, "the engine got no request")
}
