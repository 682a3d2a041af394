package pdctl_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestRole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const x, y, one = "10.0.0.1:8100", "10.0.0.2:8100", "10.0.0.3:8100"
	record := `{"v":1,"state":"ready","models":["m"],"kv_role":"kv_both","connector":"nixl"}`
	for _, address := range []string{x, y} {
		r.put("/pd/prefill/"+address, record)
		r.put("/pd/decode/"+address, record)
	}
	r.want(0, "decode/"+x+": decode only for 2h0m0s\n", "role", "decode", x, "--reason", "night", "--for", "2h")
	in := r.listings().Instances
	if in[0].Status != "decode-only" || in[0].OnlyRole != instance.Decode || in[0].Intent != instance.Drain || !strings.HasSuffix(in[0].Reason, "night") {
		t.Errorf("listed: %+v", in[0])
	}
	_, out, _ := r.run("list", "--selector", "state=decode-only")
	assert.True(t, strings.Contains(out, x) && !strings.Contains(out, y), "list:\n%s", out)
	testkit.Contains(t, r.ok("history", "prefill", x), "role decode for 2h0m0s", "night")
	r.want(1, "decode/"+y+": failed: not done: no other usable prefill instance serves m\n", "role", "decode", y)
	r.want(0, "both/"+x+": in both roles\n", "role", "both", x)
	r.want(0, "both/"+x+": in both roles already\n", "role", "both", x)
	if _, out, _ := r.run("role", "prefill", x, "--dry-run"); !strings.Contains(out, `"role":"prefill"`) || !strings.Contains(out, "/pd/meta/moves does not exist") && !strings.Contains(out, "/pd/meta/moves has not changed") {
		t.Errorf("dry run:\n%s", out)
	}
	// Refused: an engine with one role, a connector for one role, an unknown engine, an operator's drain.
	r.put("/pd/decode/"+one, record)
	r.want(1, "prefill/"+one+": failed: not done: "+one+" is registered as decode only: its role can be changed only if it is registered in both roles (--role both)\n", "role", "prefill", one)
	r.want(1, "both/"+one+": failed: not done: "+one+" is registered as decode only: its role can be changed only if it is registered in both roles (--role both)\n", "role", "both", one)
	r.put("/pd/prefill/"+one, strings.ReplaceAll(strings.ReplaceAll(record, "kv_both", "kv_consumer"), "nixl", "mooncake"))
	r.want(1, "prefill/"+one+": failed: not done: prefill/"+one+" can't serve: connector mooncake: its engine is a kv_consumer, which exits at a request in the role prefill\n", "role", "prefill", one)
	r.want(1, "decode/10.0.0.9:1: failed: there is no such instance; see pdctl list\n", "role", "decode", "10.0.0.9:1")
	r.want(1, "decode/10.0.0.9:1: would be: failed: there is no such instance; see pdctl list\n", "role", "decode", "10.0.0.9:1", "--dry-run")
	r.want(0, "prefill/"+y+": drained\n", "drain", "prefill", y)
	r.want(1, "prefill/"+y+": failed: not done: prefill/"+y+" is drained; undrain lifts that\n", "role", "prefill", y)
	r.want(0, "prefill/"+y+": undrained; proxies use it again as it registers\n", "undrain", "prefill", y)

	// A drain or cordon replaces a role change, also one with a time limit.
	r.want(0, "prefill/"+y+": prefill only\n", "role", "prefill", y)
	r.want(0, "both/"+y+": drained; it was prefill-only before, and serves both roles after the drain\n", "drain", "both", y)
	r.want(0, "both/"+y+": drained already\n", "drain", "both", y)
	r.want(0, "both/"+y+": undrained; proxies use it again as it registers\n", "undrain", "both", y)
	r.want(0, "decode/"+y+": decode only for 2h0m0s\n", "role", "decode", y, "--for", "2h")
	r.want(0, "prefill/"+y+": cordoned; it was decode-only before, and serves both roles after the cordon\n", "cordon", "prefill", y)
	r.want(0, "prefill/"+y+": uncordoned; proxies use it again as it registers\n", "uncordon", "prefill", y)

	// --wait uses the proof of drains, and names a proxy that cannot prove it.
	r.put("/pd/proxies/old", `{"v":1,"id":"old","address":"old:8000"}`)
	errs := r.want(4, "decode/"+x+": decode only\n", "role", "decode", x, "--wait", "--timeout", "300ms")
	assert.Contains(t, errs, "proxy old:8000 (old)", "%q", errs)
	r.say("old", r.revision("/pd/override/prefill/"+x), "")
	r.want(0, "decode/"+x+": decode only already\nprefill/"+x+": idle: no proxy has requests in flight there\n", "role", "decode", x, "--wait", "--timeout", "60s")
	for _, args := range [][]string{
		{"role", "both", x, "--for", "1h"}, {"role", "both", x, "--auto"}, {"role", "any", x}, {"role", "decode", "x"}, {"role", "decode"},
		{"role", "decode", x, "--wait", "--timeout", "0s"}, {"role", "decode", x, "--wait", "--dry-run"},
	} {
		r.want(2, "", args...)
	}
}
