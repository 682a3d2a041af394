package httpapi_test

import (
	"io"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// /route needs the admin key: its answer names all instances, and no right of a
// client's key allows that.
func TestExplain_RequiresAdminKey(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys")
	testkit.WriteFile(t, file, "sk-all-rights tester trace,rank,priority\n")
	d := deps()
	var err error
	d.ClientKeys, err = apikeys.Open(nil, file, d.Log, nil)
	require.NoError(t, err)
	if k, ok := d.ClientKeys.Find("sk-all-rights"); !ok || !k.Rights.Has(apikeys.Trace) || !k.Rights.Has(apikeys.Rank) || !k.Rights.Has(apikeys.Priority) {
		t.Fatalf("the key: %+v, %t", k, ok)
	}
	d.Data.Explain = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "explained") }
	s := serve(t, d, false)
	for _, tc := range []struct {
		header, key string
		code        int
	}{
		{"Authorization", "", 401}, {"Authorization", "Bearer sk-all-rights", 403}, {"X-Api-Key", "sk-all-rights", 403},
		{"Authorization", "Bearer secret", 200}, {"X-Api-Key", "secret", 200},
	} {
		code, _, body := call(t, http.MethodPost, s.URL+"/route", "{}", tc.header, tc.key)
		assert.Equal(t, tc.code, code, "%s %q: %s", tc.header, tc.key, body)
		assert.Equal(t, code == 200, body == "explained", "%s %q: %s", tc.header, tc.key, body)
	}
	_, _, body := call(t, http.MethodGet, s.URL+"/", "", "Accept", "application/json")
	assert.Contains(t, body, `"POST /route"`)
}
