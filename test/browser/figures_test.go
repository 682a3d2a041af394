package browser_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/test/harness"
)

// TestFigures checks that the failures tile keeps the number of the last five minutes when no new failure
// occurs. It also checks that age columns are labelled as ages, and that connector and reason are not
// truncated where they fit.
func TestFigures(t *testing.T) {
	r := newRig(t, 1)
	const reason = "the node is being moved to another rack until Thursday"
	put := func(key, value string) {
		t.Helper()
		if _, err := r.etcd.Client(t).Put(t.Context(), "/pd/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	put("decode/127.0.0.1:9", `{"v":1,"models":["meta-llama/Llama-3.3-70B-Instruct"],"version":"0.33.0","connector":"nixl","state":"ready"}`)
	put("override/decode/127.0.0.1:9", `{"v":1,"state":"drain","reason":"`+reason+`"}`)
	p := open(t, r.url(), desktop())
	p.shows("decode", "127.0.0.1:9", "draining")
	const failed = `Array.from(document.querySelectorAll('.tile')).find((t) => t.querySelector('h3').textContent === 'Failed')`
	p.until(failed + `?.querySelector('.big span').textContent === '0'`)
	const requests = 3
	for range requests {
		resp, _, err := harness.Send(t.Context(), http.MethodPost, r.url()+"/v1/completions", `{"model":"meta-llama/Llama-3.3-70B-Instruct","prompt":"x"}`)
		require.NoError(t, err)
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, resp.Status)
	}
	p.until(fmt.Sprintf(`%s.querySelector('.big span').textContent === '%d'`, failed, requests))
	// A later point has no failures: the small text disappears, the number stays.
	p.until(fmt.Sprintf(`%s.querySelector('small').textContent === '' && %s.querySelector('.big span').textContent === '%d' && %s.classList.contains('c-bad')`, failed, failed, requests, failed))
	assert.Equal(t, "in five minutes", value[string](p, failed+`.querySelector('.more').textContent`), "the tile shows")
	heads := value[string](p, `document.querySelector('thead').textContent`)
	assert.True(t, !strings.Contains(heads, "Lease") && strings.Contains(heads, "Age"), "columns %q", heads)
	tr := row(string(instance.Decode), "127.0.0.1:9")
	for _, cell := range []string{".who .sub", ".state .sub"} {
		cut := value[bool](p, fmt.Sprintf(`(() => { const e = (%s).querySelector(%q); return e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight })()`, tr, cell))
		text := value[string](p, fmt.Sprintf(`(%s).querySelector(%q).textContent`, tr, cell))
		if cut || !strings.Contains(text, "nixl") && !strings.Contains(text, reason) {
			t.Errorf("%s is cut (%t): %q", cell, cut, text)
		}
	}
}
