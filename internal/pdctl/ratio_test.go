package pdctl_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The advice is below the table, once for a model without measurements.
func TestRatio(t *testing.T) {
	t.Parallel()
	roles := []instance.Advice{
		{Model: "a", Role: instance.Prefill, Instances: 1.5, Wanted: 3, Pressure: 1.2, Known: true, Reason: "REASON"},
		{Model: "a", Role: instance.Decode, Instances: 3, Wanted: 1, Pressure: .3, Known: true, Reason: "REASON"},
		{Model: "b", Role: instance.Prefill, Instances: 2, Wanted: 2, Pressure: .9, Known: true, Reason: "REASON"},
		{Model: "b", Role: instance.Decode, Instances: 2, Wanted: 2, Pressure: 4, Known: true, Reason: "REASON"},
		{Model: "c", Role: instance.Prefill, Instances: 1, Wanted: 1, Reason: "REASON"},
		{Model: "c", Role: instance.Decode, Instances: 1, Wanted: 1, Reason: "REASON"},
		{Model: "d", Role: instance.Prefill, Instances: .5, Wanted: 1, Pressure: .2, Known: true, Reason: "REASON"},
		{Model: "d", Role: instance.Decode, Instances: .5, Wanted: 1, Pressure: 1.1, Known: true, Reason: "REASON"},
		{Model: "e", Role: instance.Prefill, Instances: 2, Wanted: 2, Reason: "REASON"},
		{Model: "e", Role: instance.Decode, Reason: "REASON"},
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		raw, err := json.Marshal(map[string]any{"roles": roles})
		assert.NoError(t, err)
		fmt.Fprintf(w, "%s", raw)
	}))
	defer srv.Close()
	r := newRig(t)
	r.put("/pd/proxies/a", `{"v":1,"id":"a","address":"[::]:1"}`)
	r.put("/pd/proxies/b", `{"v":1,"id":"b","address":"[::]:1","admin_url":"`+srv.URL+`"}`)
	code, out, errs := r.run("ratio")
	want := `MODEL  ROLE     INSTANCES  WANTED  PRESSURE
a      prefill        1.5  3       1.20
a      decode           3  1       0.30
b      prefill          2  2       0.90
b      decode           2  2       4.00
c      prefill          1  -       -
c      decode           1  -       -
d      prefill        0.5  1       0.20
d      decode         0.5  1       1.10
e      prefill          2  -       -
e      decode           0  -       -

a: prefill needs 3 instances and has 1.5: REASON. Start more engines, or move one that has both roles: pdctl role prefill HOST:PORT
a: decode needs 1 instance and has 3: REASON. Before you stop one: pdctl drain decode HOST:PORT --wait
b: prefill has as many instances as it needs (2): REASON
b: decode misses its target with 2 instances: REASON
c: no advice yet: REASON. Send streamed requests with answers of 8 tokens or more
d: prefill has as many instances as it needs (0.5): REASON
d: decode needs 1 instance and has 0.5: REASON. Start more engines, or move one that has both roles: pdctl role decode HOST:PORT
e: no advice yet: REASON. Send streamed requests with answers of 8 tokens or more
e: no advice yet for decode: REASON. Start more engines, or move one that has both roles: pdctl role decode HOST:PORT
`
	assert.Equal(t, 0, code, "exit\n%s\nwant", errs)
	assert.Equal(t, strings.TrimSpace(want), strings.TrimSpace(out), "exit\n%s\nwant", errs)
}
