package forward_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// Each request on a connection reaches the engines with its own header, whatever headers earlier requests
// had.
func TestHeadersOfOneConnection(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.EngineKey = "engines" })
	one := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	t.Cleanup(one.CloseIdleConnections)
	type sent struct{ tenant, key, id string }
	a, b := sent{tenant: "a"}, sent{tenant: "b", key: "Bearer mine"}
	turns := []sent{a, a, a, b, b, a, a, {tenant: "a", id: "named"}, {tenant: "a", id: "named"}, {tenant: "a", id: "named"}, a, {}, {}, b}
	for i, s := range turns {
		body := chatBody(i%3 == 2, strings.Repeat(" ", 5*i))
		q := newRequest(t.Context(), t, http.MethodPost, r.URL+chatPath, strings.NewReader(body), "X-Api-Key", "not for engines")
		for name, value := range map[string]string{"X-Tenant": s.tenant, "Authorization": s.key, "X-Request-Id": s.id} {
			if value != "" {
				q.Header.Set(name, value)
			}
		}
		a := do(one, q)
		require.True(t, a.err == nil && a.status == http.StatusOK, "turn %d: %d %s, %v", i, a.status, a.body, a.err)
	}
	ids := make([]string, len(turns))
	for _, engine := range []*fakevllm.Server{r.P[0], r.D[0]} {
		list := posted(engine)
		require.Equal(t, len(turns), len(list), "%s had %d requests", engine.Address(), len(list))
		for i, q := range list {
			s := turns[i]
			key := s.key
			if key == "" {
				key = "Bearer engines"
			}
			id := q.Header.Get("X-Request-Id")
			if q.Header.Get("X-Tenant") != s.tenant || q.Header.Get("Authorization") != key || q.Header.Get("X-Api-Key") != "" || !strings.HasPrefix(id, s.id) {
				t.Errorf("turn %d, %s: %v", i, engine.Address(), q.Header)
			}
			if engine == r.D[0] && id != ids[i] {
				t.Errorf("turn %d: the legs are %q and %q", i, ids[i], id)
			}
			ids[i] = id
		}
	}
	slices.Sort(ids)
	assert.True(t, len(slices.Compact(ids)) == len(turns) && ids[0] != "", "not every pair has its own id: %q", ids)
}
