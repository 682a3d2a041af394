package pdctl_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/doctor"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestGet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lease, err := r.cli.Grant(t.Context(), 60)
	require.NoError(t, err)
	members.Put(t, r.cli, "/pd/prefill/10.0.0.7:8100", "{\"v\":1,\"x\":\"\x1b[2J\"}", clientv3.WithLease(lease.ID))
	r.put("/pd/override/prefill/10.0.0.7:8100", `{"v":1,"state":"drain"}`)
	require.True(t, testkit.Contains(t, r.ok("get", "prefill/10.0.0.7:8100"),
		"record\n  key       /pd/prefill/10.0.0.7:8100\n  value     {\"v\":1,\"x\":\"\\u001b[2J\"}\n",
		fmt.Sprintf("lease     %x, ", lease.ID), " of 60 s left\n",
		"\noverride\n  key       /pd/override/prefill/10.0.0.7:8100\n", "  lease     none\n", "written 1 times",
	))
	r.put("/pd/decode/10.0.0.7:8100", "")
	testkit.Contains(t, r.ok("get", "decode/10.0.0.7:8100"), "(empty: a registration without a record)", "none (static)")
	assert.Contains(t, r.want(1, "", "get", "decode/10.0.0.9:1"), "etcd has nothing about decode/10.0.0.9:1 below /pd/")
}

// A key with a non-canonical address belongs to the instance that list shows.
func TestGetOtherSpelling(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for key, canonical := range map[string]string{"Node7:8200": "node7:8200", "localhost:8200": "127.0.0.1:8200", "[FD00:0::7]:8200": "[fd00::7]:8200"} {
		r.put("/pd/decode/"+key, `{"v":1,"state":"ready","models":["m"]}`)
		for _, typed := range []string{key, canonical} {
			code, out, errs := r.run("get", "decode/"+typed)
			if want := "state     ready\n\nrecord\n  key       /pd/decode/" + key + "\n"; code != 0 || !strings.HasPrefix(out, want) {
				t.Errorf("get %s: exit %d, %q does not begin\n%s%s", typed, code, want, out, errs)
			}
		}
	}
}

// get returns the record, the views of proxies, the intent and the history together.
func TestGet_ShowsViewsAndHistory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.8:8200", "")
	r.put("/pd/proxies/p1", `{"v":1,"applied":9,"address":"10.0.0.1:8000","unverified":{"decode/10.0.0.8:8200":"no answer yet: \u001b[2J"}}`)
	r.put("/pd/load/p1", `{"v":1,"applied":9,"load":{"decode/10.0.0.8:8200":{"in_flight":3}}}`)
	r.put("/pd/proxies/p2", `{"v":1,"applied":9,"address":"10.0.0.2:8000","unverified":{}}`)
	code, _, errs := r.run("drain", "decode", "10.0.0.8:8200", "--reason", "new disks")
	require.Equal(t, 0, code, errs)
	code, out, errs := r.run("get", "decode", "10.0.0.8:8200")
	for _, want := range []string{"\noverride\n", "10.0.0.1:8000        9  3          -           unverified  no answer yet: \\u001b[2J\n", "10.0.0.2:8000        9  -          -           -           -\n",
		"state     draining (unverified)\nreason    10.0.0.1:8000: no answer yet: \\u001b[2J (verified by 1 of 2 proxies); drain by ", "registered", "new disks"} {
		assert.True(t, code == 0 && strings.Contains(out, want), "exit %d, %q is not in\n%s%s", code, want, out, errs)
	}
	_, out, _ = r.run("get", "decode", "10.0.0.8:8200", "-o", "json")
	var got struct {
		Proxies []struct {
			InFlight *int64 `json:"in_flight"`
		}
		History []struct{ What string }
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Proxies) != 2 || got.Proxies[0].InFlight == nil || *got.Proxies[0].InFlight != 3 || len(got.History) != 2 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestList_ReasonForDown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:1", `{"models":["m"],"state":"down","cause":"slow"}`)
	r.put("/pd/decode/10.0.0.2:1", `{"models":["m"],"state":"down","cause":"\u001b[2J"}`)
	require.True(t, testkit.Contains(t, r.ok("list"), "decode  10.0.0.1:1  down (slow) ", `decode  10.0.0.2:1  down (\u001b[2J) `))
	if got := r.listings().Instances; got[0].State != instance.Down || got[0].Cause != instance.CauseSlow {
		t.Errorf("%+v", got)
	}
	r.leased("/pd/decode/10.0.0.3:1", `{"models":["m"],"state":"down","cause":"connection refused"}`)
	r.leased("/pd/decode/10.0.0.4:1", `{"models":["m"],"state":"starting"}`)
	r.leased("/pd/decode/10.0.0.5:1", `{"models":["m"],"state":"draining"}`)
	r.leased("/pd/prefill/10.0.0.6:1", `{"models":["m"],"connector":"mooncake","state":"starting","cause":"no engine ids","ports":{"bootstrap":[9001]}}`)
	r.ok("cordon", "decode/10.0.0.4:1", "--reason", "disks", "--for", "1h")
	_, table, _ := r.run("list")
	const bootstrap = "its bootstrap server 10.0.0.6:9001 does not return engine ids"
	require.True(t, testkit.Contains(t, r.ok("get", "prefill/10.0.0.6:1"), "starting (no engine ids)", bootstrap))
	got := r.listings().Instances
	for i, want := range []string{bootstrap, "no agent updates it", "no agent updates it", "its engine fails the probes", "cordon by ", "its agent drains it"} {
		assert.True(t, strings.HasPrefix(got[i].Reason, want) && strings.Contains(table, "  "+want),
			"%q is not the reason of %+v, or not in\n%s", want, got[i], table)
	}
	assert.Contains(t, table, "down (connection refused)")
	assert.True(t, regexp.MustCompile(`disks; ends in (59|60)m`).MatchString(table))
	left := time.Until(*got[4].Ends)
	assert.True(t, left >= 30*time.Minute && left <= time.Hour+time.Second, "the cordon ends in %s", left)
}

// Facts that are not in an instance's record come from the proxies.
func TestList_ProxyFindings(t *testing.T) {
	t.Parallel()
	bare := func(t *testing.T, presences ...string) instance.Listing {
		t.Helper()
		r := newRig(t)
		r.put("/pd/decode/10.0.0.1:1", "")
		for i, p := range presences {
			r.put(fmt.Sprintf("/pd/proxies/p%d", i), p)
		}
		return r.listings().Instances[0]
	}
	const no = `"unverified":{"decode/10.0.0.1:1":"no answer yet: \u001b[2J"}`
	for _, tc := range []struct {
		name      string
		presences []string
		view      instance.View
		reason    string
	}{
		{"no proxy", nil, instance.Unverified, "no proxy is running that could probe it"},
		{"an old proxy", []string{`{"applied":99,"address":"a:1"}`}, instance.Unverified, "each proxy probes it: see /status"},
		{"verified by all", []string{`{"applied":99,"unverified":{}}`, `{"applied":99,"unverified":{"decode/10.0.0.2:1":"x"}}`}, "", ""},
		{"one is behind", []string{`{"applied":1,"unverified":{}}`, `{"applied":99,"unverified":{}}`}, instance.Unverified, "each proxy probes it: see /status (verified by 1 of 2 proxies)"},
		{"of another fleet", []string{`{"applied":99,"unverified":{}}`, `{"applied":99,"unverified":{"decode/10.0.0.1:1":"it belongs to the fleet of h/127.0.0.1:8000"}}`}, "", ""},
		{"only of another fleet", []string{`{"applied":99,"unverified":{"decode/10.0.0.1:1":"it belongs to the fleet of h/127.0.0.1:8000"}}`}, instance.Unverified, "no proxy is running that could probe it"},
		{"one has no answer", []string{`{"applied":99,"unverified":{}}`, `{"applied":99,"address":"a:1",` + no + `}`}, instance.Unverified, `a:1: no answer yet: \u001b[2J (verified by 1 of 2 proxies)`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := bare(t, tc.presences...)
			assert.True(t, got.View == tc.view && got.Reason == tc.reason, "view %q, reason %q", got.View, got.Reason)
		})
	}
}

// pdctl shows the views and findings of proxies, next to the operator's intent.
func TestList_ProxyViews(t *testing.T) {
	t.Parallel()
	const key = "decode/10.0.0.1:1"
	proxy := func(address, report string) string {
		return `{"applied":99,"address":"` + address + `","connector":"nixl","unverified":{},"instances":{` + report + `}}`
	}
	silent := func(s int) string { return fmt.Sprintf(`"%s":{"reason":"no response for %ds"}`, key, s) }
	const dead = `"` + key + `":{"view":"ejected","reason":"connection refused\u001b[2J"}`
	for _, tc := range []struct {
		name, record, override string
		presences              []string
		status, reason         string
		models                 string
	}{
		{"nothing", `{"models":["m"]}`, "", []string{proxy("a:1", ""), proxy("b:1", "")}, "ready", "", "m"},
		{"ejected by all", `{"models":["m"]}`, "", []string{proxy("a:1", dead), proxy("b:1", dead)}, "ejected", `a:1, b:1: connection refused\u001b[2J`, "m"},
		{"for several reasons", `{"models":["m"]}`, "", []string{proxy("a:1", silent(5)), proxy("b:1", dead), proxy("c:1", silent(7)), proxy("d:1", silent(8)), proxy("e:1", silent(9))}, "ejected", `a:1, c:1, d:1, e:1: no response for 5s; b:1: connection refused\u001b[2J (ejected by 1 of 5 proxies)`, "m"},
		{"ejected by one", `{"models":["m"]}`, "", []string{proxy("a:1", ""), proxy("b:1", dead)}, "ejected", `b:1: connection refused\u001b[2J (ejected by 1 of 2 proxies)`, "m"},
		{"an older proxy", `{"models":["m"]}`, "", []string{`{"applied":99,"address":"a:1","unverified":{}}`}, "ready", "", "m"},
		{"a proxy that is behind", `{"models":["m"]}`, "", []string{strings.ReplaceAll(proxy("a:1", dead), "99", "1")}, "ready", "", "m"},
		{"with another model", `{"models":["m"]}`, "", []string{proxy("a:1", ""), strings.Replace(proxy("b:1", ""), `{}`, `{"`+key+`":"it serves m, not n"}`, 1)}, "unverified", "b:1: it serves m, not n (unverified by 1 of 2 proxies)", "m"},
		{"silent", `{"models":["m"]}`, "", []string{proxy("a:1", `"`+key+`":{"reason":"no response for 5s"}`)}, "ready", "a:1: no response for 5s", "m"},
		{"ejected and cordoned", `{"models":["m"]}`, `{"state":"cordon","by":"me","reason":"new disks"}`, []string{proxy("a:1", dead)}, "cordoned", `a:1: connection refused\u001b[2J; cordon by me: new disks`, "m"},
		{"by curl", "", `{"state":"cordon","by":"me","reason":"new disks"}`, []string{proxy("a:1", `"`+key+`":{"models":["org/m","lora"],"version":"0.12.0"}`)}, "cordoned", "cordon by me: new disks", "org/m,lora"},
		{"down", `{"models":["m"],"state":"down"}`, "", []string{proxy("a:1", dead)}, "down", "no agent updates its static record", "m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.put("/pd/"+key, tc.record)
			if tc.override != "" {
				r.put("/pd/override/"+key, tc.override)
			}
			for i, p := range tc.presences {
				r.put(fmt.Sprintf("/pd/proxies/p%d", i), p)
			}
			got := r.listings().Instances[0]
			if got.Status != tc.status || got.Reason != tc.reason || strings.Join(got.Models, ",") != tc.models {
				t.Errorf("status %q, reason %q, models %q", got.Status, got.Reason, got.Models)
			}
			assert.False(t, tc.name == "by curl" && (got.Version != "0.12.0" || got.DefaultConnector != "nixl"),
				"version %q, connector %q", got.Version, got.DefaultConnector)
			if _, out, _ := r.run("list", "--selector", "state="+tc.status); !strings.Contains(out, "decode  10.0.0.1:1  "+tc.status+" ") || strings.Contains(out, "\x1b") {
				t.Errorf("list:\n%s", out)
			}
			if _, out, _ := r.run("get", key); !strings.HasPrefix(out, "state     "+tc.status) || !strings.Contains(out, tc.reason) {
				t.Errorf("get:\n%s", out)
			}
			assert.Contains(t, r.ok("status"), "  1 "+tc.status+"\n")
		})
	}
}

// A proxy that can serve nothing is an error, also if it has an
// older release, which reports that as a notice.
func TestStatus_ServesNothing(t *testing.T) {
	t.Parallel()
	const sentence = "1 decode instance is registered, but none can be used (1 ejected): nothing is served"
	for name, proxy := range map[string]string{
		"this release":        `{"v":1,"applied":99,"address":"a:1","unverified":{},"instances":{},"not_serving":"` + sentence + `","notices":["` + sentence + `"]}`,
		"an older proxy":      `{"v":1,"applied":99,"address":"a:1","unverified":{},"notices":["` + sentence + `"]}`,
		"with another notice": `{"v":1,"applied":99,"address":"a:1","unverified":{},"notices":["` + sentence + `","another notice"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.put("/pd/proxies/p1", proxy)
			code, out, errs := r.run("status")
			if code != 1 || !strings.Contains(out, "\nerror (a:1): "+sentence+"\n") || strings.Count(out, sentence) != 1 || !strings.Contains(errs, "nothing is served by 1 of 1 proxies") {
				t.Errorf("status: exit %d\n%s%s", code, out, errs)
			}
			assert.Equal(t, doctor.Error, finds(t, r.examined(5), "serving", "fleet", sentence, "pdctl list").Severity)
		})
	}
}

// Engines with NIXL that are used with the dialect plain are reported, because each prompt is computed twice.
func TestList_WarnsOfNIXLAsPlain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/prefill/10.0.0.1:1", `{"models":["m"],"transfer":"nixl"}`)
	r.put("/pd/decode/10.0.0.2:1", `{"models":["m"],"transfer":"nixl","connector":"nixl"}`)
	warned := func() (out []string) {
		for _, in := range r.listings().Instances {
			if in.Warning != "" {
				out = append(out, in.Address)
			}
		}
		return out
	}
	assert.Len(t, warned(), 0, "no record names a connector, warned of")
	r.put("/pd/proxies/p1", `{"connector":"plain"}`)
	assert.Empty(t, cmp.Diff([]string{"10.0.0.1:1"}, warned()))
	_, table, _ := r.run("list")
	assert.Equal(t, 1, strings.Count(table, "set --connector nixl"), "list\n%s", table)
}

func TestHostileEntries_Escaped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const evil = "\x1b]0;owned\x07\u202e\r\n\x00"
	r.put("/pd/prefill/10.0.0.1:1", "{broken "+evil)
	r.put("/pd/prefill/10.0.0.2:1", `{"models":["m`+strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(evil, "\x1b", `\u001b`), "\x07", `\u0007`), "\r\n", `\r\n`), "\x00", `\u0000`)+`"],"connector":"\u001b[1m"}`)
	r.put("/pd/prefill/"+evil+":1", "")
	r.put("/pd/decode/10.0.0.3:1", "\xff\xfe\x00")
	r.put("/pd/decode/10.0.0.4:1", strings.Repeat("x", 1<<20))
	r.put("/pd/override/decode/10.0.0.3:1", `{"state":"drain","reason":"\u001b[2J"}`)
	r.put("/pd/proxies/p1", `{"address":"\u001b[2J","version":"`+"\u202e"+`"}`)
	for _, args := range [][]string{
		{"list"}, {"list", "-o", "json"}, {"status"}, {"status", "-o", "json"}, {"top", "--once"}, {"version"}, {"export"}, {"history"}, {"model", "ls"}, {"limit", "list"},
		{"get", "prefill/10.0.0.1:1"}, {"get", "prefill/10.0.0.2:1"}, {"get", "decode/10.0.0.3:1", "-o", "json"}, {"get", "decode/10.0.0.4:1"},
	} {
		code, out, errs := r.run(args...)
		assert.Equal(t, 0, code, "%v: exit\n%s%s", args, out, errs)
		assert.False(t, strings.ContainsAny(out+errs, "\x1b\x07\r\x00\u202e\xff"),
			"%v: control characters in %q", args, out+errs)
		assert.LessOrEqual(t, len(out), 200<<10, "%v: %d bytes of output", args, len(out))
	}
	rejected := 0
	var odd string
	for _, in := range r.listings().Instances {
		if in.View == instance.Rejected {
			rejected++
			assert.NotEqual(t, "", in.Reason, "no reason: %+v", in)
			if !strings.HasPrefix(in.Address, "10.") {
				odd = in.Address
			}
		}
	}
	assert.Equal(t, 4, rejected)
	// An invalid key can be removed by the address that list shows.
	r.ok("remove", "prefill", odd)
	for _, in := range r.listings().Instances {
		assert.False(t, in.Address == odd && in.Intent != instance.Removed, "still there: %+v", in)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/prefill/10.0.0.1:1", `{"models":["m"]}`)
	out, stop := r.background("watch", "--initial")
	lines, stopJSON := r.background("watch", "-o", "json")
	ready := func(o *lockedBuffer) func() error {
		return func() error { return o.has("Watching 1 instances from revision") }
	}
	testkit.Eventually(t, time.Minute, ready(out))
	testkit.Eventually(t, time.Minute, ready(lines))

	r.put("/pd/decode/10.0.0.2:1", `{"models":["m"]}`)
	// Both outputs are awaited each time: a late one shows two changes as one.
	testkit.Eventually(t, time.Minute, func() error { return out.has("  +  decode/10.0.0.2:1  ready  static m\n") })
	testkit.Eventually(t, time.Minute, func() error { return lines.has(`"change":"added"`) })
	r.put("/pd/decode/10.0.0.2:1", `{"models":["m"],"state":"down"}`)
	testkit.Eventually(t, time.Minute, func() error {
		return out.has("  ~  decode/10.0.0.2:1  down  state ready -> down\n")
	})
	testkit.Eventually(t, time.Minute, func() error { return lines.has(`"change":"changed"`) })
	assert.NoError(t, out.has("  =  prefill/10.0.0.1:1  ready  static m\n"))

	r.etcd.Restart()
	r.cli = r.etcd.Client(t)
	members.Del(t, r.cli, "/pd/decode/10.0.0.2:1")
	testkit.Eventually(t, time.Minute, func() error { return out.has("  -  decode/10.0.0.2:1  gone  static m\n") })
	testkit.Eventually(t, time.Minute, func() error { return lines.has(`"change":"removed"`) })

	assert.Equal(t, 0, stop(true), "exit")
	assert.Equal(t, 0, stopJSON(true), "exit")
	var changes []string
	for line := range strings.Lines(lines.String()) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var c struct {
			Change, Address, Time string
			At                    int64 `json:"at_revision"`
			What                  []string
		}
		err := json.Unmarshal([]byte(line), &c)
		assert.True(t, err == nil && c.At != 0 && c.Time != "", "%v: %s", err, line)
		changes = append(changes, c.Change+" "+c.Address+" "+strings.Join(c.What, ";"))
	}
	want := []string{"added 10.0.0.2:1 ", "changed 10.0.0.2:1 state ready -> down", "removed 10.0.0.2:1 "}
	assert.Empty(t, cmp.Diff(want, changes))
}

// The load digests of proxies are shown next to them; a digest may be missing or unreadable.
func TestStatusOfLoad(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, id := range []string{"p1", "p2", "p3"} {
		r.put("/pd/proxies/"+id, `{"address":"127.0.0.1:8000","version":"0.1.0","applied":3}`)
	}
	r.put("/pd/load/p1", `{"v":1,"applied":2,"load":{"decode/10.0.0.2:1":{"in_flight":4},"prefill/10.0.0.1:1":{"in_flight":1}},"at":"2026-01-01T00:00:00Z"}`)
	r.put("/pd/load/p2", `{"v":2}`)
	_, out, _ := r.run("status")
	require.True(t, testkit.Contains(t, out, "p1     127.0.0.1:8000  0.1.0          3  5 ", "3  -          not usable\n", "3  -          -\n"))
	var rep struct {
		Proxies []struct {
			ID   string
			Load *struct {
				Applied, Instances int64
				InFlight           int64 `json:"in_flight"`
				Ignored            string
			}
		}
	}
	_, out, _ = r.run("status", "-o", "json")
	err := json.Unmarshal([]byte(out), &rep)
	require.True(t, err == nil && len(rep.Proxies) == 3, "%v: %s", err, out)
	p1, p2, p3 := rep.Proxies[0].Load, rep.Proxies[1].Load, rep.Proxies[2].Load
	if p1 == nil || p1.Applied != 2 || p1.Instances != 2 || p1.InFlight != 5 || p2 == nil || p2.Ignored == "" || p3 != nil {
		t.Errorf("%s", out)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/prefill/10.0.0.1:1", `{"models":["m"]}`)
	r.put("/pd/prefill/10.0.0.2:1", `{"models":["m"],"state":"down"}`)
	r.put("/pd/decode/10.0.0.2:1", "")
	r.put("/pd/proxies/p1", `{"address":"127.0.0.1:8000","version":"0.1.0","applied":3}`)
	r.put("/pd/load/p1", `{"v":1,"applied":2,"load":{"decode/10.0.0.2:1":{"in_flight":4}}}`)
	out := r.ok("status")
	require.True(t, testkit.Contains(t, out,
		r.etcd.Endpoint()+"  3.", "leader", "alarms: none", "keys below: /pd/", "\nrevision: ",
		"prefill          2  1 down, 1 ready\n", "decode           1  1 unverified\n", "p1     127.0.0.1:8000  0.1.0          3          4  ?\n",
	))
	var rep struct {
		Endpoints []struct {
			Version string
			DBSize  int64 `json:"db_size"`
			Leader  bool
		}
		Counts  map[string]map[string]int
		Proxies []struct {
			ID      string
			Applied int64
		}
		Membership int64 `json:"membership_revision"`
	}
	_, out, _ = r.run("status", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(out), &rep))
	if rep.Counts["prefill"]["down"] != 1 || len(rep.Proxies) != 1 || rep.Proxies[0].Applied != 3 || rep.Endpoints[0].DBSize == 0 || !rep.Endpoints[0].Leader || rep.Membership == 0 {
		t.Errorf("%s", out)
	}
	// An instance that all proxies have verified is counted by its state.
	r.put("/pd/proxies/p1", `{"address":"127.0.0.1:8000","version":"0.1.0","applied":99,"unverified":{}}`)
	if _, out, _ = r.run("status"); !strings.Contains(out, "decode           1  1 ready\n") || strings.Contains(out, "notice") {
		t.Errorf("verified by the only proxy:\n%s", out)
	}
}

// Notices of several proxies are shown once.
func TestStatusHasNotices(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const both, one = "2 prefill instances are unused: prefill speaks nixl", "1 prefill instance is ready, but\u001b[2J"
	r.put("/pd/proxies/p1", `{"address":"10.0.0.1:8000","notices":["`+both+`","`+strings.ReplaceAll(one, "\u001b", `\u001b`)+`"]}`)
	r.put("/pd/proxies/p2", `{"address":"10.0.0.2:8000","notices":["`+both+`"]}`)
	_, out, _ := r.run("status")
	if !strings.HasSuffix(out, "\nnotice (every proxy): "+both+"\nnotice (10.0.0.1:8000): 1 prefill instance is ready, but\\u001b[2J\n") {
		t.Errorf("%s", out)
	}
	var rep struct{ Proxies []struct{ Notices []string } }
	_, out, _ = r.run("status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &rep); err != nil || len(rep.Proxies) != 2 || len(rep.Proxies[0].Notices) != 2 || rep.Proxies[1].Notices[0] != both {
		t.Errorf("%v: %s", err, out)
	}
}

// alarm raises NOSPACE although there is space.
func (r *rig) alarm() {
	r.t.Helper()
	cli := r.etcd.Client(r.t)
	status, err := cli.Status(r.t.Context(), r.etcd.Endpoint())
	require.NoError(r.t, err)
	_, err = etcdserverpb.NewMaintenanceClient(cli.ActiveConnection()).Alarm(r.t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	require.NoError(r.t, err)
}

func TestStatusWithAlarm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.alarm()
	code, out, errs := r.run("status")
	if code != 1 || !strings.Contains(out, "alarms: NOSPACE on member") || !strings.Contains(errs, "etcd has an alarm: NOSPACE") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	code, out, errs = r.run("add", "prefill", testkit.FreePort(t), "--no-verify")
	assert.True(t, code == 1 && strings.Contains(out, "out of space") && strings.Contains(out, "pdctl doctor"),
		"exit %d\n%s%s", code, out, errs)
}
