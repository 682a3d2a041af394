package forward_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// A request for all instances reaches each of them once, with the engines' key and not the operator's. The
// client gets an error unless all of them succeed.
func TestFanOut(t *testing.T) {
	t.Parallel()
	r := start(t, "plain", 0, 0, func(o *forward.Options) { o.EngineKey = "engines" })
	var mu sync.Mutex
	var got []string
	broken := ""
	var list []*instance.Instance
	for _, role := range []instance.Role{instance.Prefill, instance.Prefill, instance.Decode, instance.Decode} {
		list = append(list, handlerEngine(t, role, func(w http.ResponseWriter, q *http.Request) {
			b, err := io.ReadAll(q.Body)
			assert.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			got = append(got, q.URL.String()+" "+string(b)+" "+q.Header.Get("Authorization")+q.Header.Get("X-Api-Key"))
			if q.Host == broken {
				http.Error(w, "no such adapter", http.StatusNotFound)
				return
			}
			_, _ = io.WriteString(w, "Success: LoRA adapter 'a' added successfully.")
		}))
	}
	r.members.set(list...)
	post := func(target, body string) *httptest.ResponseRecorder {
		q := httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body))
		q.Header.Set("Authorization", "Bearer operator")
		q.Header.Set("X-Api-Key", "operator")
		if body != "" {
			q.Header.Set("Content-Type", "application/json")
		}
		w := httptest.NewRecorder()
		path, _, _ := strings.Cut(target, "?")
		r.handler.FanOut(path)(relay.Std(w), q)
		r.entry()
		return w
	}
	for target, body := range map[string]string{"/v1/load_lora_adapter": `{"lora_name":"a"}`, "/reset_prefix_cache?reset_running_requests=true": ""} {
		got = nil
		if w := post(target, body); w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), "Success") {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
		if want := target + " " + body + " Bearer engines"; len(got) != 4 || strings.Join(got, "\n") != strings.Repeat(want+"\n", 3)+want {
			t.Errorf("%s: the engines got %q, want %q each", target, got, want)
		}
	}
	broken = list[2].Address
	if w := post("/v1/load_lora_adapter", `{"lora_name":"a"}`); w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), "1 of 4 instances") || !strings.Contains(w.Body.String(), broken+": 404 no such adapter") {
		t.Errorf("one refuses: %d %s", w.Code, w.Body)
	}
	r.members.set()
	if w := post("/reset_prefix_cache", ""); w.Code != http.StatusServiceUnavailable {
		t.Errorf("no instance: %d %s", w.Code, w.Body)
	}
}

// A request for all instances does not use a connection that the engine may be closing: if it were sent
// again, the engine would refuse an adapter that it has just loaded.
func TestFanOut_NewConnection(t *testing.T) {
	t.Parallel()
	r := start(t, "plain", 0, 0, nil)
	type connection struct{}
	var loads atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		n, _ := q.Context().Value(connection{}).(*atomic.Int64)
		switch {
		case n.Add(1) > 1:
			loads.Add(1)
			panic(http.ErrAbortHandler)
		case q.URL.Path == "/v1/load_lora_adapter" && loads.Add(1) > 1:
			http.Error(w, "already loaded", http.StatusBadRequest)
		}
	}))
	s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, connection{}, new(atomic.Int64))
	}
	s.Start()
	t.Cleanup(s.Close)
	r.members.set(instanceAt(instance.Decode, s.Listener.Addr().String(), "plain"))
	for _, path := range []string{"/start_profile", "/v1/load_lora_adapter"} {
		q := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader("{}"))
		q.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		r.handler.FanOut(path)(relay.Std(w), q)
		if r.entry(); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if n := loads.Load(); n != 1 {
		t.Errorf("the engine was to load the adapter %d times", n)
	}
}

// An engine that is registered in both roles gets the request once: the second time, it would refuse an
// adapter that it has just loaded.
func TestFanOut_EngineInBothRoles(t *testing.T) {
	t.Parallel()
	r := startWithModels(t, 1, 1)
	r.members.set(append(r.members.Snapshot().All(), instanceAt(instance.Decode, r.P[0].Address(), fakevllm.NIXL))...)
	for _, what := range []string{"load", "unload"} {
		path := "/v1/" + what + "_lora_adapter"
		q := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(`{"lora_name":"a","lora_path":"."}`))
		q.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		r.handler.FanOut(path)(relay.Std(w), q)
		if r.entry(); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
		for _, in := range r.members.Snapshot().All() {
			assert.Equal(t, (what == "load"), slices.Contains(in.Record.Models, "a"),
				"after %s, %s has %v", what, in.Key, in.Record.Models)
		}
	}
}
