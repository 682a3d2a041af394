package pdctl_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestHistory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const x, y = "10.0.0.1:8200", "10.0.0.2:8200"
	r.want(0, "There is no history.\n", "history")
	for _, a := range []string{x, y} {
		r.put("/pd/decode/"+a, `{"v":1,"state":"ready","models":["m"]}`)
	}
	r.put("/pd/load/p", `{"v":1}`)
	r.want(0, "decode/"+x+": drained for 1h0m0s\n", "drain", "decode", x, "--for", "1h", "--reason", "new \x1b[2Jdisks")
	r.put("/pd/decode/"+x, `{"v":1,"state":"down","cause":"slow","models":["m"]}`)
	r.want(0, "decode/"+y+": weight 20\n", "weight", "decode", y, "20")
	r.want(0, "decode/"+x+": undrained; proxies use it again as it registers\n", "undrain", "decode", x)
	members.Del(t, r.cli, "/pd/decode/"+y)

	read := func(args ...string) (out []string) {
		t.Helper()
		var got struct {
			Events []struct {
				Revision                          int64
				At, Who, What, Role, Address, Why string
				For                               string
				Weight                            *int
			}
			Since int64 `json:"remembered_since"`
		}
		code, text, errs := r.run(append([]string{"history", "-o", "json"}, args...)...)
		err := json.Unmarshal([]byte(text), &got)
		require.True(t, err == nil && code == 0, "%d %s %v: %s", code, errs, err, text)
		last := int64(0)
		for _, e := range got.Events {
			assert.True(t, e.Revision >= last && (e.Who == "") == (e.At == ""), "%+v after %d", e, last)
			last = e.Revision
			weight := ""
			if e.Weight != nil {
				weight = fmt.Sprint(*e.Weight)
			}
			out = append(out, strings.TrimSpace(strings.Join([]string{e.What, e.Address, e.Why, e.For, weight}, " ")))
		}
		return out
	}
	all := []string{
		"registered: ready " + x, "registered: ready " + y, `drain ` + x + ` new \u001b[2Jdisks 1h0m0s`,
		"record changed: down (slow) " + x, "weight " + y + "   20", "undrain " + x, "registration ended " + y,
	}
	same := func(got, want []string) {
		t.Helper()
		assert.Equal(t, strings.Join(want, "\n"), strings.Join(got, "\n"), "got\n\nwant")
	}
	same(read(), all)
	same(read("decode", y), []string{all[1], all[4], all[6]})
	same(read("--limit", "2"), all[5:])
	same(read("--since", "1h"), all)
	same(read("--since", "2020-01-01"), all)
	same(read("--since", time.Now().Add(time.Hour).UTC().Format(time.RFC3339)), all[6:]) // an entry without a time counts after the last one with a time
	if _, out, _ := r.run("history", "decode", y); !strings.Contains(out, "weight 20") || !strings.Contains(out, "registration ended") || strings.Contains(out, "remembers") {
		t.Errorf("%s", out)
	}

	// Compacted revisions are lost; audit entries are not.
	revision := r.revision("/pd/decode/" + x)
	_, err := r.cli.Compact(t.Context(), revision)
	require.NoError(t, err)
	got := read()
	same(got, append([]string{all[2]}, all[3:]...))
	assert.Contains(t, r.ok("history"), fmt.Sprintf("since revision %d.", revision))
	for _, args := range [][]string{{"history", "decode"}, {"history", "both", x}, {"history", "--limit", "0"}, {"history", "--since", "yesterday"}, {"history", "--since", "-1h"}} {
		r.want(2, "", args...)
	}
}

// An entry with a wrong clock does not hide the changes before it.
func TestHistorySinceWithWrongClocks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const x, y = "10.0.0.1:8200", "10.0.0.2:8200"
	const late = `{"v":1,"at":"2020-01-01T00:00:00Z","who":"late","what":"cordon","role":"decode","address":"` + x + `"}`
	r.put("/pd/decode/"+x, `{"v":1,"state":"ready","models":["m"]}`)
	r.put("/pd/audit/2", late) // before --since
	r.put("/pd/decode/"+y, `{"v":1,"state":"ready","models":["m"]}`)
	r.ok("weight", "decode", y, "20")
	r.put("/pd/decode/"+x, `{"v":1,"state":"down","models":["m"]}`)
	r.put("/pd/audit/1", late) // its key sorts before the other entry
	r.put("/pd/audit/3", "unreadable")
	members.Del(t, r.cli, "/pd/decode/"+y)
	out := strings.Join(strings.Fields(r.ok("history", "--since", "1h")), " ")
	at := 0
	for _, want := range []string{"registered: ready decode/" + y, "weight 20", "record changed: down decode/" + x, "late", "unreadable", "registration ended"} {
		i := strings.Index(out[at:], want)
		require.GreaterOrEqual(t, i, 0, "%q is missing, or not in the order of revisions: %s", want, out)
		at += i
	}
	assert.NotContains(t, out, "registered: ready decode/"+x)
	assert.Equal(t, 1, strings.Count(out, "late"), "changes before the time")
}

// The history of an instance includes registrations at keys with a non-canonical address.
func TestHistoryOtherSpelling(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/Node7:8200", `{"v":1,"state":"ready","models":["m"]}`)
	for _, command := range []string{"history", "get"} {
		assert.Contains(t, r.ok(command, "decode/node7:8200"), "registered: ready  decode/Node7:8200")
	}
}
