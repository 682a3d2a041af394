package pdctl_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// Intents apply to an instance whose only key has a non-canonical address, because proxies use it.
func TestIntentsOfOtherSpelling(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/Node7:8200", `{"v":1,"state":"ready","models":["m"]}`)
	r.want(0, "decode/node7:8200: drained\n", "drain", "decode", "Node7:8200")
	all := r.listings().Instances
	assert.True(t, len(all) == 1 && all[0].Intent == instance.Drain, "%+v", all)
	r.want(0, "decode/node7:8200: undrained; proxies use it again as it registers\n", "undrain", "decode/node7:8200")
	r.want(0, "decode/node7:8200: weight 50\n", "weight", "--selector", "role=decode", "50")
}

func TestDrainAndCordon(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const x, y = "10.0.0.1:8200", "10.0.0.2:8200"
	for _, verb := range []string{"drain", "cordon"} {
		r.want(1, "decode/"+x+": failed: there is no such instance; see pdctl list. If proxies use it without its key (pdctl status), add --force\n", verb, "decode", x)
	}
	for _, a := range []string{x, y} {
		r.put("/pd/decode/"+a, `{"v":1,"state":"ready","models":["m"]}`)
	}
	intents := func(want ...instance.Intent) {
		t.Helper()
		for i, in := range r.listings().Instances {
			assert.Equal(t, want[i], in.Intent, in.Address)
		}
	}
	r.want(0, "decode/"+x+": drained\ndecode/"+y+": drained\n", "drain", "decode", x, y, "--reason", "disks")
	intents(instance.Drain, instance.Drain)
	r.want(0, "decode/"+x+": drained already\n", "drain", "decode", x)
	errs := r.want(1, "decode/"+x+": failed: not done: decode/"+x+" is drained; undrain lifts that\n", "uncordon", "decode", x)
	assert.Contains(t, errs, "1 of 1 failed")
	r.want(0, "decode/"+x+": cordoned for 1h0m0s; it was drained before\n", "cordon", "decode", x, "--for", "1h")
	intents(instance.Cordon, instance.Drain)
	r.want(0, "decode/"+x+": uncordoned; proxies use it again as it registers\n", "uncordon", "decode", x)
	r.want(0, "decode/"+x+": there is no cordon; nothing changed\n", "uncordon", "decode", x)
	r.want(0, "decode/"+y+": undrained; proxies use it again as it registers\n", "undrain", "decode", y)
	intents("", "")
	r.want(1, "decode/10.0.0.9:1: failed: there is no such instance; see pdctl list\n", "undrain", "decode", "10.0.0.9:1")
	// An orphan has no key, but serves requests.
	r.want(0, "decode/10.0.0.9:1: drained\n", "drain", "decode", "10.0.0.9:1", "--force")
	r.want(0, "decode/10.0.0.9:1: undrained; proxies use it again as it registers\n", "undrain", "decode", "10.0.0.9:1")
	// When its time limit ends, an intent's weight ends, too.
	r.want(0, "decode/"+x+": weight 20 for 1m0s\n", "weight", "decode", x, "20", "--for", "1m")
	r.want(1, "decode/"+x+": failed: not done: decode/"+x+" has a weight of 20 with a time limit, which both would share; undo the weight first\n",
		"drain", "decode", x)
	r.want(0, "decode/"+x+": weight 20\n", "weight", "decode", x, "20")
	r.want(1, "decode/"+x+": failed: not done: decode/"+x+" has a weight of 20 set by an operator, which would end at the same time; undo the weight first, or leave out the time\n",
		"drain", "decode", x, "--for", "1m")
	r.want(0, "decode/"+x+": weight override removed\n", "weight", "decode", x, "default")
	r.want(0, "decode/"+x+": drained for 1h0m0s\n", "drain", "decode", x, "--for", "1h")
	r.want(1, "decode/"+x+": failed: not done: decode/"+x+" is drained; undrain lifts that, and the weight would end together with that; lift it first\n",
		"weight", "decode", x, "20")

	for _, args := range [][]string{
		{"drain", "decode", x, "--for", "1s"}, {"drain", "decode", x, "--for", "soon"}, {"drain", "decode", "10.0.0.1"}, {"drain", "all", x},
		{"drain", "decode", x, "--wait", "--timeout", "0s"}, {"cordon", "decode", x, "--reason", strings.Repeat("x", 2000)},
		{"weight", "decode", x, "default", "--for", "1m"}, {"wait"}, {"wait", "--revision", "7", "--timeout", "-1s"}, {"wait", "--revision", "x"},
	} {
		r.want(2, "", args...)
	}
}

// say writes the presence and the load digest of a proxy.
func (r *rig) say(id string, applied int64, load string) {
	r.t.Helper()
	r.put("/pd/proxies/"+id, fmt.Sprintf(`{"v":1,"id":%q,"address":"%s:8000","applied":%d}`, id, id, applied))
	r.put("/pd/load/"+id, fmt.Sprintf(`{"v":1,"applied":%d,"load":{%s}}`, applied, load))
}

// Output and exit code of drain --wait; the test simulates the proxies.
func TestDrainWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const x = "10.0.0.1:8200"
	r.put("/pd/decode/"+x, `{"v":1,"state":"ready","models":["m"]}`)
	drain := []string{"drain", "decode", x, "--wait", "--timeout", "60s"}
	free := "decode/" + x + ": idle: no proxy has requests in flight there\n"
	if errs := r.want(0, "decode/"+x+": drained\n"+free, drain...); !strings.Contains(errs, "still waiting: no proxy is registered in etcd\nNote: no proxy uses this etcd") {
		t.Errorf("%q", errs)
	}
	revision := r.revision("/pd/override/decode/" + x)

	// Proxies that lost their leases during a stall of the machine come back.
	out, stop := r.background(drain...)
	testkit.Eventually(t, time.Minute, func() error { return out.has("drained already") })
	r.say("b", revision, `"decode/`+x+`":{"in_flight":3}`)
	testkit.Eventually(t, time.Minute, func() error { return out.has("waiting: proxy b:8000") })
	r.say("b", revision, "")
	code := stop(false)
	assert.True(t, code == 0 && out.has("no proxy uses this etcd") != nil, "exit %d: %s", code, out)
	r.leaves("b")

	// All are free. A proxy that had reported that it is free may vanish.
	r.say("a", revision, `"decode/other:1":{"in_flight":3}`)
	r.want(0, "decode/"+x+": drained already\n"+free, drain...)
	r.want(0, "decode/"+x+"\n", append(drain, "-o", "name")...)

	// One proxy holds requests until the time limit.
	r.say("b", revision, `"decode/`+x+`":{"in_flight":3}`)
	errs := r.want(4, "decode/"+x+": drained already\n", "drain", "decode", x, "--wait", "--timeout", "300ms")
	assert.Contains(t, errs, "proxy b:8000 (b) has in flight: 3 on decode/"+x)
	assert.NotContains(t, errs, "a:8000")
	r.want(4, "", "drain", "decode", x, "--wait", "--timeout", "300ms", "-o", "name")

	// The requests end during the wait; a progress line shows that the wait has begun.
	out, stop = r.background(drain...)
	testkit.Eventually(t, time.Minute, func() error { return out.has("waiting: proxy b:8000") })
	r.say("b", revision, "")
	assert.Equal(t, 0, stop(false), "exit: %s", out)

	// A proxy that vanishes before its report is named.
	r.say("b", revision-1, "")
	out, stop = r.background(drain...)
	testkit.Eventually(t, time.Minute, func() error { return out.has("waiting: proxy b:8000") })
	r.leaves("b")
	if code := stop(false); code != 3 || out.has("proxy b:8000 (b) vanished before it had reported") != nil {
		t.Errorf("exit %d: %s", code, out)
	}

	// Lifting the drain ends the wait.
	r.say("b", revision-1, "")
	out, stop = r.background(drain...)
	testkit.Eventually(t, time.Minute, func() error { return out.has("waiting: proxy b:8000") })
	r.want(0, "decode/"+x+": undrained; proxies use it again as it registers\n", "undrain", "decode", x)
	assert.Equal(t, 1, stop(false), "exit: %s", out)
}

// The wait continues while etcd does not answer. At the time limit, the
// error names etcd, and the proxies without a proof at the last poll.
func TestDrainWaitWithoutEtcd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const x = "10.0.0.1:8200"
	r.put("/pd/decode/"+x, `{"v":1,"state":"ready","models":["m"]}`)
	r.say("b", 1, "")
	r.want(0, "decode/"+x+": drained\n", "drain", "decode", x)
	revision := r.revision("/pd/override/decode/" + x)

	waits, end := r.background("drain", "decode", x, "--wait", "--timeout", "5m")
	late, endLate := r.background("drain", "decode", x, "--wait", "--timeout", "6s")
	for _, out := range []*lockedBuffer{waits, late} {
		testkit.Eventually(t, time.Minute, func() error { return out.has("waiting: proxy b:8000") })
	}
	r.etcd.Kill()
	if code := endLate(false); code != 4 || late.has("is at 1; etcd does not answer. The drain stays in effect") != nil {
		t.Errorf("exit %d: %s", code, late)
	}
	testkit.Eventually(t, time.Minute, func() error { return waits.has("etcd does not answer, still waiting") })
	r.etcd.Restart()
	testkit.Eventually(t, time.Minute, func() error {
		_, err := r.cli.Put(t.Context(), "/pd/load/b", fmt.Sprintf(`{"v":1,"applied":%d,"load":{}}`, revision))
		return err
	})
	assert.Equal(t, 0, end(false), "exit: %s", waits)

	// etcd stops after the writes, before the first read.
	r.written = func(text string) {
		if strings.HasPrefix(text, "decode/"+x+": drained") {
			r.etcd.Kill()
		}
	}
	waits, end = r.background("drain", "decode", x, "--wait", "--timeout", "5m")
	testkit.Eventually(t, time.Minute, func() error { return waits.has("etcd does not answer, still waiting") })
	r.written = nil
	r.etcd.Restart()
	assert.Equal(t, 0, end(false), "exit: %s", waits)

	// A drain that was lost with a wiped etcd is not reported as lifted by an operator.
	r.say("b", 1, "")
	waits, end = r.background("drain", "decode", x, "--wait", "--timeout", "5m")
	testkit.Eventually(t, time.Minute, func() error { return waits.has("waiting: proxy b:8000") })
	r.etcd.Wipe()
	r.etcd.Restart()
	if code := end(false); code != 1 || waits.has("etcd was wiped or restored from a backup: it is at revision 1, and was at ") != nil {
		t.Errorf("exit %d: %s", code, waits)
	}
}

// An engine in both roles is waited for as one instance. The wait for each instance ends with its drain.
func TestDrainWait_PerInstance(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const x, y = "10.0.0.1:8200", "10.0.0.2:8200"
	r.put("/pd/decode/"+x, `{"v":1,"state":"ready","models":["m"]}`)
	r.put("/pd/decode/"+y, `{"v":1,"state":"ready","models":["m"]}`)
	r.put("/pd/prefill/"+x, `{"v":1,"state":"ready","models":["m"]}`)
	errs := r.want(0, "both/"+x+": drained\nboth/"+x+": idle: no proxy has requests in flight there\n", "drain", "both",
		x, "--wait")
	assert.NotEqual(t, "", errs, "stderr does not say that pdctl waited for no proxy")
	r.say("b", 1, "")
	out, stop := r.background("drain", "decode", x, y, "--wait", "--for", "3s")
	if code := stop(false); code != 1 || out.has("has ended meanwhile: it was lifted or has expired") != nil {
		t.Errorf("exit %d: %s", code, out)
	}
}

// leaves removes the presence and the load digest of a proxy.
func (r *rig) leaves(id string) {
	r.t.Helper()
	_, err := r.cli.Txn(r.t.Context()).Then(clientv3.OpDelete("/pd/proxies/"+id), clientv3.OpDelete("/pd/load/"+id)).Commit()
	require.NoError(r.t, err)
}

func (r *rig) revision(key string) int64 {
	r.t.Helper()
	resp, err := r.cli.Get(r.t.Context(), key)
	require.NoError(r.t, err, key)
	require.Len(r.t, resp.Kvs, 1, key)
	return resp.Kvs[0].ModRevision
}

func TestWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const x = "10.0.0.1:8200"
	r.put("/pd/decode/"+x, `{"v":1,"state":"ready","models":["m"]}`)
	_, out, _ := r.run("cordon", "decode", x, "-o", "json")
	var got struct {
		Results []struct {
			Outcome  string
			Revision int64
		}
	}
	err := json.Unmarshal([]byte(out), &got)
	require.True(t, err == nil && len(got.Results) == 1 && got.Results[0].Outcome == "cordoned", "%v: %s", err, out)
	revision := got.Results[0].Revision
	assert.Equal(t, r.revision("/pd/override/decode/"+x), revision)
	at := fmt.Sprint(revision)
	r.want(0, "revision "+at+": applied by 0 proxies\n", "wait", "--revision", at)
	r.say("a", revision, "")
	r.say("b", revision-2, "")
	if errs := r.want(4, "", "wait", "--revision", at, "--timeout", "300ms"); !strings.Contains(errs, "proxy b:8000 (b) has not applied revision "+at+" yet, it is at ") || strings.Contains(errs, "a:8000") {
		t.Errorf("%q", errs)
	}
	// A revision without a change of the membership counts as applied by all proxies.
	r.say("b", revision, "")
	now := r.revision("/pd/load/b")
	r.want(0, fmt.Sprintf("revision %d: applied by 2 proxies\n", now), "wait", "--revision", fmt.Sprint(now))
	assert.Contains(t, r.want(1, "", "wait", "--revision", fmt.Sprint(now+1000)), "there is no revision")
	// A proxy of an older release does not know limits: it never applies the revision of one, and does not
	// prove it by that of a later instance. The wait is for the others only, and fails.
	r.want(0, "limits/default: set\n", "limit", "set", "default", "--rpm", "60")
	limit := r.revision("/pd/limits/default")
	r.want(0, "limits/default: removed\n", "limit", "rm", "default")
	r.put("/pd/decode/10.0.0.2:8200", "")
	later := r.revision("/pd/decode/10.0.0.2:8200")
	knows := func(applied int64) {
		r.put("/pd/proxies/a", `{"v":1,"id":"a","address":"a:8000","documents":["limits","models"]}`)
		r.put("/pd/load/a", fmt.Sprintf(`{"v":1,"applied":%d}`, applied))
	}
	for _, tc := range []struct{ revision, older int64 }{{limit, revision}, {limit, later}, {later - 1, later}} {
		at := fmt.Sprint(tc.revision)
		knows(1)
		r.say("b", tc.older, "")
		waiting, stop := r.background("wait", "--revision", at, "--timeout", "1h")
		testkit.Eventually(t, patience, func() error { return waiting.has("proxy a:8000 (a) has not applied revision " + at) })
		knows(later)
		testkit.Eventually(t, patience, func() error {
			return waiting.has("not every proxy has applied revision " + at + ": proxy b:8000 (b) is of an older release")
		})
		assert.Equal(t, 1, stop(false), "exit")
	}
	r.want(0, fmt.Sprintf("revision %d: applied by 2 proxies\n", later), "wait", "--revision", fmt.Sprint(later))
	// The revision of a limit proves that a proxy knows limits, also without a list of what it reads.
	r.say("b", limit, "")
	r.want(0, fmt.Sprintf("revision %d: applied by 2 proxies\n", limit), "wait", "--revision", fmt.Sprint(limit))
}
