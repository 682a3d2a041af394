package forward_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/modelroute"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
)

// target parses one target of a model route, such as "70:new" or "30:old{tier=a}".
func target(t testing.TB, text string) *modelroute.Target {
	t.Helper()
	out := &modelroute.Target{}
	weight, name, _ := strings.Cut(text, ":")
	if _, err := fmt.Sscan(weight, &out.Weight); err != nil {
		t.Fatal(err)
	}
	labels := ""
	out.Name = name
	out.Model, labels, _ = strings.Cut(strings.TrimSuffix(name, "}"), "{")
	if labels != "" {
		var err error
		if out.Labels, err = instance.ParseSelector(labels); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// routesOf returns model routes with these targets by name, sticky by session, and a function that replaces
// the targets of one route.
func routesOf(t testing.TB, routes map[string][]string) (*modelroute.Routes, func(name string, targets ...string)) {
	t.Helper()
	var m members
	m.p.Store(&instance.Snapshot{Documents: &instance.Documents{}})
	r := modelroute.New(&m, func(*instance.Documents) (out []*modelroute.Route) {
		for name, targets := range routes {
			one := &modelroute.Route{Name: name}
			for _, text := range targets {
				one.Targets = append(one.Targets, target(t, text))
				one.Own = one.Own || one.Targets[len(one.Targets)-1].Model == name
			}
			out = append(out, one)
		}
		return out
	})
	return r, func(name string, targets ...string) {
		routes[name] = targets
		m.p.Store(&instance.Snapshot{Documents: &instance.Documents{}})
	}
}

// startRoutes is start with model routes and one pair of engines for each model, which serves only that
// model. Each pair has the label pair=N.
func startRoutes(t *testing.T, models []string, routes map[string][]string, tune func(*forward.Options)) (*rig, func(string, ...string)) {
	t.Helper()
	list, change := routesOf(t, routes)
	served, n := map[string]int{}, 0
	r := startTuned(t, fakevllm.NIXL, len(models), len(models), tuning{
		engine: func(o *fakevllm.Options) {
			served[o.Addr] = n % len(models)
			o.Models, o.Version = []string{models[served[o.Addr]]}, "0.32.0"
			n++
		},
		forward: func(o *forward.Options) {
			o.Routes, o.Sessions = list, forward.Sessions{Header: "session-id"}
			if tune != nil {
				tune(o)
			}
		},
		sched: noProbes,
	})
	r.members.change(func(in *instance.Instance) {
		in.Record.Models = []string{models[served[in.Address]]}
		in.Record.Labels = map[string]string{"pair": fmt.Sprint(served[in.Address])}
	})
	return r, change
}

func chatOf(model string, stream bool) string {
	return strings.Replace(chatBody(stream, ""), `"m"`, fmt.Sprintf("%q", model), 1)
}

// targetOf sends a chat and returns the target that served it.
func (r *rig) targetOf(model string, stream bool, header ...string) string {
	r.t.Helper()
	a := r.post(chatPath, chatOf(model, stream), append(header, "X-PD-Trace", "1")...)
	require.True(r.t, a.status == http.StatusOK && a.err == nil, "%s: %d, %v: %s", model, a.status, a.err, a.body)
	return a.header.Get("X-Pd-Model")
}

// On every API, the engines get their own model name, and the answer has the name that the client used.
func TestModelRoute_AnswersWithItsName(t *testing.T) {
	t.Parallel()
	const alias = `gp"t/4o`
	quoted, _ := json.Marshal(alias)
	r, _ := startRoutes(t, []string{"new"}, map[string][]string{alias: {"100:new"}}, continuing)
	script(t, r.D[0], fakevllm.Fault{
		Kind: fakevllm.FaultStatus, Status: http.StatusOK, Path: "/v1/embeddings", Header: map[string]string{"Content-Type": "application/json", "Metadata": `{"id": "embd-1", "model": "new"}`},
		Body: `{"id":"embd-1","object":"list","created":1,"model":"new","data":[{"index":0,"embedding":[` + strings.Repeat("0.25,", 20_000) + `1]}],"usage":{"prompt_tokens":2}}`,
	})
	for _, c := range []struct{ path, body string }{
		{completionsPath, `"prompt":"the sea","max_tokens":4`},
		{chatPath, `"messages":[{"role":"user","content":"the sea"}],"max_tokens":4`},
		{"/v1/responses", `"input":"the sea","max_output_tokens":4`},
		{"/v1/messages", `"messages":[{"role":"user","content":"the sea"}],"max_tokens":4`},
		{"/v1/embeddings", `"input":"the sea"`},
		{chatPath, `"model":"ignored","messages":[{"role":"user","content":"the sea"}],"max_tokens":4`},
	} {
		for _, stream := range []bool{false, true} {
			if stream && c.path == "/v1/embeddings" {
				continue
			}
			a := r.post(c.path, fmt.Sprintf(`{%s,"stream":%v,"model":%s}`, c.body, stream, quoted))
			if a.status != http.StatusOK || a.err != nil {
				t.Errorf("%s: %d, %v: %s", c.path, a.status, a.err, a.body)
				continue
			}
			text := string(a.body) + a.header.Get("Metadata") // vLLM has a header for embeddings as bytes
			named := strings.Count(text, `"model":`+string(quoted)) + strings.Count(text, `"model": `+string(quoted))
			if all := strings.Count(text, `"model":`); named == 0 || named != all {
				t.Errorf("%s, stream %v: %d of %d models are the alias in %s", c.path, stream, named, all, text)
			}
			e := r.entry()
			assert.True(t, e.Model == alias && e.Target == "new", "entry %+v", e)
		}
	}
	form := strings.Replace(audioForm(nil), "\r\nm\r\n", "\r\n"+alias+"\r\n", 1)
	r.transcribe(form).check(t, http.StatusOK)
	r.checkEngines()
}

// Explain reports the target's share of the weights.
func TestModelRoute_ExplainsShare(t *testing.T) {
	t.Parallel()
	r, _ := startRoutes(t, []string{"new", "old"}, map[string][]string{"chat": {"80:new", "20:old"}}, nil)
	for range 2 {
		p := r.explain(chatOf("chat", false))
		want := map[string]float64{"new": 0.8, "old": 0.2}[p.Target]
		assert.True(t, p.Share != 0 && p.Share == want, "target %q, share %v", p.Target, p.Share)
		r.targetOf("chat", false)
	}
}

// A stream that continues after the loss of its leg keeps the client's model name to its end, even if the
// proxy completes it.
func TestModelRoute_StreamContinues(t *testing.T) {
	t.Parallel()
	for _, tokens := range []int{7, 60} {
		r, _ := startRoutes(t, []string{"new", "new"}, map[string][]string{"chat": {"100:new"}}, continuing)
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultClose, Tokens: tokens, Times: 1})
		body := sixtyBody(chatPath, `,"ignore_eos":true`)
		a := r.post(chatPath, strings.Replace(body, `"m"`, `"chat"`, 1))
		r.checkOne(a, chatPath, body, engineOptions(func(*fakevllm.Options) {}))
		n := strings.Count(string(a.body), `"model":`)
		assert.True(t, n != 0 && n == strings.Count(string(a.body), `"model":"chat"`), "models in %s", a.body)
		e := r.entry()
		assert.Equal(t, 1, e.Continued, "entry %+v", e)
	}
}

// Each target gets its share, over models and over labels. Sessions keep their target while the weights are
// unchanged; when the weights change, only the necessary part moves.
func TestModelRoute_Splits(t *testing.T) {
	t.Parallel()
	for _, targets := range [][]string{{"70:new", "30:old"}, {"70:new{pair=0}", "30:old{pair notin (0)}"}} {
		r, change := startRoutes(t, []string{"new", "old"}, map[string][]string{"chat": targets}, nil)
		// Any 400 consecutive turns match the shares within 1 %; random ones would differ by more in half of the
		// runs.
		const sessions, clients = 60, 8
		requests := longform.Count(400, 10_000)
		var counts [2]atomic.Int64
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				for range requests / clients {
					switch a := r.post(completionsPath, `{"model":"chat","prompt":"a","max_tokens":1}`, "X-PD-Trace", "1"); {
					case a.status != http.StatusOK:
						t.Errorf("%d %s", a.status, a.body)
					case a.header.Get("X-Pd-Model")[:3] == "new":
						counts[0].Add(1)
					default:
						counts[1].Add(1)
					}
				}
			})
		}
		all.Wait()
		if share := float64(counts[0].Load()) / float64(requests) * 100; math.Abs(share-70) > 1.5 {
			t.Errorf("%v: %.2f %%", targets, share)
		} else {
			t.Logf("%v: %.2f %%", targets, share)
		}
		var side [sessions]string
		moved := 0
		for round := range 4 {
			if round == 3 {
				change("chat", strings.Replace(targets[0], "70", "50", 1), strings.Replace(targets[1], "30", "50", 1))
			}
			for i := range sessions {
				switch is := r.targetOf("chat", false, "Session-Id", fmt.Sprint("session-", i)); {
				case round == 0:
					side[i] = is
				case round < 3 && side[i] != is:
					t.Errorf("session %d went from %s to %s", i, side[i], is)
				case side[i] != is:
					if moved++; side[i][:3] != "new" {
						t.Errorf("session %d left %s, which got more", i, side[i])
					}
				}
			}
		}
		assert.True(t, moved != 0 && moved <= sessions/2, "%d of %d sessions moved", moved, sessions)
	}
}

// While the engines of a target die, no request is lost: the other target serves them. The fallback is
// counted, and the client sees it.
func TestModelRoute_TargetDies(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"killed", "broken", "ejected"} {
		r, _ := startRoutes(t, []string{"new", "old"}, map[string][]string{"chat": {"90:new", "10:old"}}, nil)
		var lost atomic.Int64
		var all sync.WaitGroup
		begun := make(chan struct{}, 200)
		for client := range 4 {
			all.Go(func() {
				for i := range 50 {
					begun <- struct{}{}
					stream := kind != "killed" && (client+i)%2 == 0 // a stream that has begun is lost with its engine
					if a := r.post(chatPath, chatOf("chat", stream)); a.status != http.StatusOK || a.err != nil || !strings.Contains(string(a.body), `"model":"chat"`) {
						lost.Add(1)
						t.Errorf("%s: %d, %v: %.400s", kind, a.status, a.err, a.body)
					}
				}
			})
		}
		for range 20 {
			<-begun
		}
		for _, s := range []*fakevllm.Server{r.engineOf("new", r.P), r.engineOf("new", r.D)} {
			switch kind {
			case "killed":
				script(t, s, fakevllm.Fault{Kind: fakevllm.FaultDie, At: fakevllm.AfterRead})
			case "broken":
				script(t, s, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500, At: fakevllm.AfterRead})
			default:
				s.Pause(true)
				in, _ := r.members.Snapshot().Lookup(instance.Key{Role: instance.Decode, Address: s.Address()})
				if in != nil {
					r.tracker.Eject(in, "test")
				}
				s.Pause(false)
			}
		}
		all.Wait()
		assert.EqualValues(t, 0, lost.Load(), "%s: lost", kind)
		if kind == "ejected" {
			continue
		}
		for range 10 {
			if a := r.post(chatPath, chatOf("chat", true), "X-PD-Trace", "1"); a.header.Get("X-Pd-Model") == "old" && a.header.Get("X-Pd-Model-Fallback") == "new" {
				kind = ""
				break
			}
		}
		assert.Equal(t, "", kind, "no request shows that it went to the other target")
	}
}

// The answer names no instance of a target that was passed over.
func TestModelRoute_PassedOverInstances(t *testing.T) {
	t.Parallel()
	r, _ := startRoutes(t, []string{"new", "old"}, map[string][]string{"chat": {"100:new", "0:old"}}, func(o *forward.Options) { o.Fallback = false })
	for _, s := range []*fakevllm.Server{r.engineOf("new", r.D), r.engineOf("old", r.P)} {
		script(t, s, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusInternalServerError})
	}
	a := r.post(chatPath, chatOf("chat", false), "X-PD-Trace", "1")
	e, h := r.entry(), a.header
	if a.status != http.StatusInternalServerError || e.Target != "old" || h.Get("X-Pd-Prefill") != r.engineOf("old", r.P).Address() || h.Get("X-Pd-Decode") != "" || e.Decode != "" {
		t.Errorf("%d, decode %q: %v", a.status, e.Decode, h)
	}
}

// engineOf returns the engine of a list that serves a model.
func (r *rig) engineOf(model string, list []*fakevllm.Server) *fakevllm.Server {
	r.t.Helper()
	for _, in := range r.members.Snapshot().All() {
		for _, s := range list {
			if s.Address() == in.Address && slices.Contains(in.Record.Models, model) {
				return s
			}
		}
	}
	r.t.Fatal("no engine serves " + model)
	return nil
}

// A model whose engines do not answer is not reported as unknown, nor is a model route to it.
func TestModelRoute_EnginesOfTargetFail(t *testing.T) {
	t.Parallel()
	r, _ := startRoutes(t, []string{"new", "old"}, map[string][]string{"alias": {"100:old"}}, nil)
	r.engineOf("old", r.P).Kill()
	r.engineOf("old", r.D).Kill()
	for name, want := range map[string]int{"new": http.StatusOK, "old": http.StatusServiceUnavailable, "alias": http.StatusServiceUnavailable, "none": http.StatusNotFound} {
		a := r.get("/v1/models/" + name)
		if r.entry(); a.status != want {
			t.Errorf("%s: %d %s, want %d", name, a.status, a.body, want)
		}
	}
}

// The name of a model that engines serve is not an alias, unless the route splits that model itself.
func TestModelRoute_EngineNameWins(t *testing.T) {
	t.Parallel()
	r, change := startRoutes(t, []string{"new", "old"}, map[string][]string{"old": {"100:new"}, "none": {"100:absent"}, "split": {"0:absent", "30:old", "70:new"}}, nil)
	for path, want := range map[string]string{
		"": `"new","old","split"`, "/split": `"split"`, "/old": `"old"`,
	} {
		var one, list struct {
			ID, Root string
			Parent   *string
			Data     []struct{ ID, Root, Parent string }
		}
		text := r.get("/v1/models" + path).body
		require.NoError(t, errors.Join(json.Unmarshal(text, &list), json.Unmarshal(text, &one)))
		ids := []string{strconv.Quote(one.ID)}
		if path == "" {
			ids = nil
			for _, m := range list.Data {
				ids = append(ids, strconv.Quote(m.ID))
			}
			slices.Sort(ids)
		}
		if strings.Join(ids, ",") != want || path == "/split" && (one.Root != "old" || one.Parent == nil || *one.Parent != "old") {
			t.Errorf("/v1/models%s: %s", path, text)
		}
	}
	assert.Equal(t, "", r.targetOf("old", true), "the request went to")
	change("old", "0:old", "100:new")
	assert.Equal(t, "new", r.targetOf("old", true), "the request went to")
	if a := r.post(chatPath, chatOf("none", false)); a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), "none") {
		t.Errorf("%d %s", a.status, a.body)
	} else if passed := a.header.Get("X-Pd-Model-Fallback"); passed != "" {
		t.Errorf("%s was passed over, and there is no other target", passed)
	}
	r.post(chatPath, chatOf("unknown", false)).check(t, http.StatusNotFound)
	for limit, says := range map[string]string{`"x"`: `"param":"body.max_tokens"`, "0": "invalid max_tokens: "} { // vLLM checks 0 after the model
		r.post(chatPath, strings.Replace(chatOf("split", false), "12", limit, 1)).require(t, http.StatusBadRequest, says)
	}
}

// A request that continues a stored response goes to the target whose instance has it.
func TestModelRoute_StoredResponse(t *testing.T) {
	t.Parallel()
	r, _ := startRoutes(t, []string{"new", "old"}, map[string][]string{"chat": {"50:new", "50:old"}}, nil)
	used := map[string]bool{}
	for i := range 12 {
		id, target := "", ""
		if i%2 == 1 { // the client chooses the id, which does not name the instance
			id = fmt.Sprintf(`,"request_id":"resp_%d"`, i)
		}
		for range 2 {
			a := r.post(responsesPath, `{"model":"chat","input":"the sea","max_output_tokens":4`+id+`}`, "X-PD-Trace", "1", "Session-Id", fmt.Sprint(i, id))
			var v struct{ ID, Model string }
			if err := json.Unmarshal(a.body, &v); err != nil || a.status != http.StatusOK || v.Model != "chat" {
				t.Fatalf("%d %s", a.status, a.body)
			}
			if is := a.header.Get("X-Pd-Model"); target != "" && is != target {
				t.Errorf("%s continued what %s stored", is, target)
			}
			target = a.header.Get("X-Pd-Model")
			used[target] = true
			id = fmt.Sprintf(`,"previous_response_id":%q`, v.ID)
		}
	}
	assert.Len(t, used, 2, "used")
	// Instances of other models are queried, too, and the answer is about the response, not about the model.
	for _, model := range []string{"chat", "new", "old"} {
		a := r.post(responsesPath, fmt.Sprintf(`{"model":%q,"input":"the sea","previous_response_id":"resp_nobodys"}`, model))
		if a.status != http.StatusNotFound || !strings.Contains(string(a.body), "Response with id 'resp_nobodys' not found.") {
			t.Errorf("%s: %d %s", model, a.status, a.body)
		}
	}
}

// BenchmarkModelRequest measures a whole request over canned engines, without model routes and for an alias.
func BenchmarkModelRequest(b *testing.B) {
	list, _ := routesOf(b, map[string][]string{"alias": {"1:m"}})
	for _, c := range []struct {
		name, model string
		routes      *modelroute.Routes
	}{{"off", "m", nil}, {"other", "m", list}, {"alias", "alias", list}} {
		b.Run(c.name, func(b *testing.B) {
			h := handlerOf(b, &canned{prefill: []byte(plainAnswer)}, func(o *forward.Options) { o.Routes = c.routes })
			body := fmt.Sprintf(`{"model":%q,"prompt":"%s","max_tokens":64,"temperature":0}`, c.model, strings.Repeat("x", 2048))
			serve(b, h, body, len(body))
		})
	}
}
