package leg

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/connector"
)

// The client's own id is used if it can be in a header; otherwise the id is a new UUID. Each attempt has an
// id for the engines, which begins with the request's id.
func TestIDs(t *testing.T) {
	t.Parallel()
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for _, tc := range []struct{ name, sent string }{
		{"none", ""}, {"the client's", "mine-1"}, {"a space", "a b"}, {"a quote", `a"b`}, {"a backslash", `a\b`}, {"not ASCII", "ä"}, {"too long", strings.Repeat("x", maxID+1)},
	} {
		id := RequestID(http.Header{"X-Request-Id": {tc.sent}})
		if own := tc.name == "the client's"; own != (id == tc.sent) || !own && !uuid.MatchString(id) {
			t.Errorf("%s: %q", tc.name, id)
		}
		for range 3 {
			engine := EngineID(id)
			if nonce, ok := strings.CutPrefix(engine, id+"-"); !ok || !regexp.MustCompile("^[0-9a-f]{8}$").MatchString(nonce) || seen[engine] {
				t.Errorf("for the engines %q, after %v", engine, seen)
			}
			seen[engine] = true
		}
	}
	if id := RequestID(http.Header{}); !uuid.MatchString(id) {
		t.Errorf("without a header: %q", id)
	}
	a, b := Key(), Key()
	assert.True(t, len(a) == 32 && a != b, "keys %q and %q", a, b)
}

// Each leg has its own header. Fields of a dialect replace the client's, and change neither the client's
// header nor that of the other leg.
func TestHeaderOfEachLeg(t *testing.T) {
	t.Parallel()
	o := testOrigin(t.Context())
	o.Header = http.Header{"X-Tenant": {"a"}, "X-Data-Parallel-Rank": {"7"}, "X_data_parallel_rank": {"8"}, "X-Request-Id": {"mine"}, "Connection": {"X-Hop"}, "X-Hop": {"1"}}
	plain := o.NewHeader("id-1")
	ranked := o.NewHeader("id-2", connector.Field{Name: "X-data-parallel-rank", Value: "3"})
	if got := plain.fields; got.Get("X-Request-Id") != "id-1" || got["X-Data-Parallel-Rank"] != nil || got["X_data_parallel_rank"] != nil || got.Get("X-Tenant") != "a" || got["X-Hop"] != nil {
		t.Errorf("without a rank: %v", got)
	}
	if got := ranked.fields; got.Get("X-Request-Id") != "id-2" || len(got["X-Data-Parallel-Rank"]) != 1 || got.Get("X-Data-Parallel-Rank") != "3" {
		t.Errorf("with a rank: %v", got)
	}
	assert.True(t, o.Header.Get("X-Request-Id") == "mine" && o.Header.Get("X-Data-Parallel-Rank") == "7",
		"the client's header was changed: %v", o.Header)
	if ranked.Without("X-Tenant"); ranked.fields["X-Tenant"] != nil || plain.fields["X-Tenant"] == nil {
		t.Error("Without took the field out of another header")
	}
}
