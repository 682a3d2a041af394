package pdctl_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Model routes are set, listed with the instances that their targets
// can use, and removed. The name of a served model is refused.
func TestModel(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:8200", `{"v":1,"state":"ready","models":["qwen"],"labels":{"tier":"stable"}}`)
	r.put("/pd/prefill/10.0.0.2:8100", `{"v":1,"state":"ready","models":["qwen","org/new"],"labels":{"tier":"stable"}}`)
	r.want(0, "No model routes. Add one with: pdctl model route NAME=MODEL\n", "model", "ls")
	errs := r.want(0, "models/org/chat: set\n", "model", "route", "org/chat=70:org/new,30:old:8b", "--reason", "trial")
	assert.Contains(t, errs, "no instance of target old:8b", "stderr %q", errs)
	r.want(0, "models/org/chat: unchanged\n", "model", "route", "org/chat=70:org/new,30:old:8b", "--reason", "trial")
	r.want(0, "models/qwen: set for 1h0m0s\n", "model", "route", "qwen=90:qwen{tier in (stable,x)},10:qwen{tier=canary},0:org/new", "--sticky", "key", "--for", "1h")
	r.want(1, "", "model", "route", "org/new=old")
	r.ok("model", "route", "alias=absent")
	if got := regexp.MustCompile(`ends in (59|60)m`).ReplaceAllString(r.ok("model", "ls"), "ends in 1h"); got != `NAME      TARGET                    WEIGHT  REQUESTS  SHARE  PREFILL  DECODE  STICKY   NOTE
alias     absent                       100  -         -            0       0  session  no usable instance
org/chat  org/new                       70  -         -            1       0  session  trial
org/chat  old:8b                        30  -         -            0       0  session  no usable instance
qwen      qwen{tier in (stable,x)}      90  -         -            1       1  key      ends in 1h
qwen      qwen{tier=canary}             10  -         -            0       0  key      no usable instance; ends in 1h
qwen      org/new                        0  -         -            1       0  key      ends in 1h
` {
		t.Error(got)
	}
	r.ok("model", "rm", "alias")
	// Proxies count requests. A proxy that does not answer is named.
	addresses := map[string]string{}
	for id, requests := range map[string]string{"p1": "7", "p2": "1", "gone": ""} {
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"id":"p","model_routes":[{"name":"org/chat","targets":[{"target":"org/new","requests":`+requests+`}]}]}`)
		}))
		defer proxy.Close()
		addresses[id] = proxy.Listener.Addr().String()
		r.put("/pd/proxies/"+id, `{"v":1,"id":"`+id+`","address":"`+addresses[id]+`"}`)
	}
	if code, out, errs := r.run("model", "ls"); code != 0 || !strings.Contains(strings.Join(strings.Fields(out), " "), "org/chat org/new 70 8 100.0 % 1 0 session trial org/chat old:8b 30 0 0.0 % 0 0") || !strings.Contains(errs, "1 of 3 proxies did not answer") || !strings.Contains(errs, `: http://`+addresses["gone"]+` does not answer as a proxy of this version: `) {
		t.Errorf("%d %s %s", code, out, errs)
	}
	// The admin URL takes precedence, and an address without a host is not dialled.
	own := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"id":"p","model_routes":[{"name":"org/chat","targets":[{"target":"org/new","requests":5}]}]}`)
	}))
	defer own.Close()
	_, port, _ := net.SplitHostPort(own.Listener.Addr().String())
	r.put("/pd/proxies/p1", `{"v":1,"id":"p1","address":"0.0.0.0:`+port+`"}`)
	r.put("/pd/proxies/p2", `{"v":1,"id":"p2","address":"0.0.0.0:`+port+`","admin_url":"`+own.URL+`"}`)
	if code, out, errs := r.run("model", "ls"); code != 0 || !strings.Contains(strings.Join(strings.Fields(out), " "), "org/chat org/new 70 5 100.0 %") || !strings.Contains(errs, "2 of 3 proxies did not answer") || !strings.Contains(errs, `proxy p1 has no admin URL in etcd`) {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if got, err := r.cli.Get(t.Context(), "/pd/models/org/chat"); err != nil || len(got.Kvs) != 1 ||
		string(got.Kvs[0].Value) != `{"v":1,"targets":[{"model":"org/new","weight":70},{"model":"old:8b","weight":30}],"reason":"trial"}` {
		t.Errorf("%v %v", got, err)
	}
	r.put("/pd/models/bad", `{"v":1,"targets":[]}`)
	r.put("/pd/models/org/new", `{"v":1,"targets":[{"model":"qwen"}]}`)
	_, text, _ := r.run("model", "ls", "-o", "json")
	var out struct{ Routes []instance.ListedModelRoute }
	if err := json.Unmarshal([]byte(text), &out); err != nil || len(out.Routes) != 4 || !strings.Contains(out.Routes[0].Problem, "1 to 16 targets") ||
		!strings.Contains(out.Routes[2].Problem, "prefill/10.0.0.2:8100 serves") || out.Routes[1].Problem != "" || out.Routes[1].Ends != nil || out.Routes[3].Ends == nil {
		t.Errorf("%v %s", err, text)
	}
	for _, bad := range []string{"chat", "=new", "chat=", "chat=a,a", "chat=0:a", "chat=20000:a", "chat=80:a,20%:b", "chat=a{state=down}", "chat=a{x==}=", "a b=c"} {
		r.want(2, "", "model", "route", bad)
	}
	r.want(2, "", "model", "route", "chat=new", "--sticky", "user")
	assert.Contains(t, r.ok("model", "rm", "qwen", "--dry-run"), "delete  /pd/models/qwen")
	r.want(1, "models/qwen: removed\nmodels/none: failed: there is no such model route; see pdctl model ls\n", "model", "rm", "qwen", "none")
}

// A route that was not written causes no warnings.
func TestModelRouteFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/meta/schema", `{"v":99}`)
	if errs := r.want(1, "models/a: failed: the keys in etcd are of a newer version: /pd/meta/schema says version 99, this program writes version 1; upgrade it, or use another --etcd-prefix\n",
		"model", "route", "a=b"); strings.Contains(errs, "warning") {
		t.Error(errs)
	}
}
