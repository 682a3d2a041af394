package forward_test

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

func key(role instance.Role, s *fakevllm.Server) instance.Key {
	return instance.Key{Role: role, Address: s.Address()}
}

// vLLM answers some requests with 500 on every instance. Such a request must not eject the instances that it
// reaches.
func TestPoisonousRequest_NoEjection(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 2, 3, nil)
		for _, s := range append(r.P, r.D...) {
			script(t, s, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500})
		}
		for range 10 {
			r.checkRefused(q, r.postScenario(q), http.StatusInternalServerError, "")
		}
		for _, s := range r.P {
			assert.True(t, r.tracker.Available(key(instance.Prefill, s)), "%s was ejected", s.Address())
		}
		for _, s := range r.D {
			assert.True(t, r.tracker.Available(key(instance.Decode, s)), "%s was ejected", s.Address())
		}
	})
}

// An instance that fails requests which others serve is ejected, and readmitted when it serves again. No
// client notices.
func TestFailingInstance_EjectedAndReadmitted(t *testing.T) {
	t.Parallel()
	for _, role := range instance.Roles() {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 4, 4, nil)
			s := r.engines(role)[0]
			script(t, s, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 503, Probability: 0.5, Seed: 1})
			body := chatBody(true, "")
			before := legs(r.P)
			n := int64(0)
			for n < 400 && r.tracker.Available(key(role, s)) {
				r.checkComplete(r.post("/v1/chat/completions", body), true, body)
				n++
			}
			require.False(t, r.tracker.Available(key(role, s)), "it was never ejected")
			extra := legs(r.P) - before - n
			assert.LessOrEqual(t, extra, n/5+64, "%d extra prefills for %d requests", extra, n)
			s.ClearFaults()
			eventually(t, "it returns", func() bool { return r.tracker.Available(key(role, s)) })
			s.ForgetRequests()
			eventually(t, "it gets requests again", func() bool {
				r.checkComplete(r.post("/v1/chat/completions", body), true, body)
				return legs([]*fakevllm.Server{s}) > 0
			})
			r.checkEngines()
		})
	}
}

// An instance that fails the requests of one of its models is not picked for that model and serves the
// others, however their requests alternate.
func TestInstance_FailsOneModel(t *testing.T) {
	t.Parallel()
	for _, role := range instance.Roles() {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			r := startTuned(t, fakevllm.NIXL, 2, 2, tuning{
				engine: func(o *fakevllm.Options) { o.Models = append(o.Models, "other") },
				health: func(o *health.Options) { o.MaxEjection = time.Hour },
			})
			for _, in := range r.members.Snapshot().All() {
				r.observe(in.Key, model, "other")
			}
			s := r.engines(role)[0]
			fine, fails := chatBody(false, ""), strings.Replace(chatBody(false, ""), `"m"`, `"other"`, 1)
			// pair sends requests for each model, and reports whether s got the one that it fails.
			pair := func() (failed bool) {
				got := func(body string) bool {
					s.ForgetRequests()
					r.post("/v1/chat/completions", body).require(t, http.StatusOK)
					return legs([]*fakevllm.Server{s}) > 0
				}
				script(t, s, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500})
				failed = got(fails)
				s.ClearFaults()
				for range 4 {
					if got(fine) {
						return failed
					}
				}
				t.Fatal("it does not get the requests that it serves")
				return false
			}
			last := 0 // the number of the last pair with a failed leg
			const pairs = 40
			for i := range pairs {
				if pair() {
					last = i
				}
			}
			assert.Less(t, last, pairs/2,
				"%s still gets the requests that it fails, the last one in pair %d of %d", s.Address(), last, pairs)
			assert.True(t, r.tracker.Available(key(role, s)), "it is ejected for all models")
			assert.Equal(t, []string{"other"}, r.tracker.FailingModels(key(role, s)), "ejected for")
		})
	}
}

// waitingLeg starts a request whose first leg in the role hangs, and returns the
// instance it hangs on and the channel of its answer.
func waitingLeg(t *testing.T, r *rig, role instance.Role, q scenario) (*fakevllm.Server, <-chan answer) {
	t.Helper()
	s := r.engines(role)[0]
	script(t, s, fakevllm.Fault{Kind: fakevllm.FaultHang, Times: 1})
	done := async(func() answer { return r.postScenario(q) })
	eventually(t, "the leg hangs", func() bool { return s.Counters().Faults >= 1 }) // a probe may hang by now as well
	return s, done
}

// If an instance is removed, a leg that waits for it is called off and tried elsewhere: no deadline has to
// pass.
func TestWaitingLeg_CancelledOnRemoval(t *testing.T) {
	t.Parallel()
	changes := map[string]func(*instance.Instance){
		"left":      nil,
		"down":      func(i *instance.Instance) { i.Record.State = instance.Down },
		"removed":   func(i *instance.Instance) { i.Intent = instance.Removed },
		"restarted": func(i *instance.Instance) { i.Record.ID += "-next" },
	}
	for name, change := range changes {
		for _, role := range instance.Roles() {
			t.Run(name+"/"+string(role), func(t *testing.T) {
				t.Parallel()
				eachAPI(t, both(), func(t *testing.T, q scenario) {
					r := start(t, fakevllm.NIXL, 2, 2, nil)
					s, done := waitingLeg(t, r, role, q)
					if change == nil {
						r.members.remove(s)
					} else {
						r.members.changeAt(s, change)
					}
					r.checkWhole(q, <-done)
					assert.Equal(t, string(role)+"/gone", r.rec.retried(), "retried")
					eventually(t, "the hung leg is aborted", func() bool { return aborted(s.Counters()) == 1 })
					r.checkEngines()
				})
			})
		}
	}
}

var lastEvent = regexp.MustCompile(`\[DONE\]|message_stop|"response\.(completed|incomplete)"`)

var firstContent = regexp.MustCompile(`"content":"[^"]|output_text\.delta|content_block_delta|"token_ids":\[\d`)

// A leg that was called off while its first content was unread is not committed: nothing would follow that
// content.
func TestCancelledLeg_NotCommitted(t *testing.T) {
	t.Parallel()
	eachAPI(t, streamed(), func(t *testing.T, q scenario) {
		var r *rig
		var first sync.Once
		r = start(t, fakevllm.NIXL, 1, 2, func(o *forward.Options) {
			o.Upstream = &hookedClient{Client: o.Upstream, role: instance.Decode, after: func(leg context.Context, read []byte, _ error) {
				if firstContent.Match(read) && !lastEvent.Match(read) {
					first.Do(func() {
						r.members.remove(r.D[0])
						<-leg.Done()
					})
				}
			}}
		})
		// The first instance is picked first; its first content comes well before the rest.
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultSlow, ITL: waitLimit})
		r.checkServed(q)
		e := r.entry()
		require.True(t, e.Failed == 1 && r.rec.retried() == "decode/gone", "retried %q, entry %+v", r.rec.retried(), e)
		r.checkEngines()
	})
}

// Draining and cordoned instances finish their running requests.
func TestDraining_LegsFinish(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 1, 2, nil)
		script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultSlow, TTFT: 200 * time.Millisecond, Times: 1})
		done := async(func() answer { return r.postScenario(q) })
		eventually(t, "the decode leg runs", func() bool { return r.D[0].Counters().Faults == 1 })
		r.members.changeAt(r.D[0], func(in *instance.Instance) { in.Record.State = instance.Draining })
		r.checkWhole(q, <-done)
		e := r.entry()
		require.True(t, e.Failed == 0 && e.Decode == r.D[0].Address(), "entry %+v", e)
	})
}

// An engine that hangs accepts connections and sends nothing. It is ejected for its silence, and requests
// that wait for it are served elsewhere.
func TestSilentEngine(t *testing.T) {
	t.Parallel()
	for _, role := range instance.Roles() {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			eachAPI(t, streamed(), func(t *testing.T, q scenario) {
				r := startHealth(t, fakevllm.NIXL, 2, 2, nil, func(o *health.Options) { o.SilenceLimit = time.Second })
				s := r.engines(role)[0]
				script(t, s, fakevllm.Fault{Kind: fakevllm.FaultHang, Path: "/health"})
				_, done := waitingLeg(t, r, role, q)
				r.checkWhole(q, <-done)
				if e, ok := r.tracker.Ejected(key(role, s)); !ok || !r.tracker.Unreachable(key(role, s)) || !strings.Contains(e, "silent") {
					t.Fatalf("ejection %s, %v", e, ok)
				}
				s.ClearFaults()
				eventually(t, "it returns", func() bool { return r.tracker.Available(key(role, s)) })
			})
		})
	}
}

// A slow engine that still answers its probes is not ejected.
func TestSlowEngine_NotEjected(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultSlow, TTFT: 400 * time.Millisecond, Times: 1})
	body := chatBody(true, "")
	r.checkComplete(r.post("/v1/chat/completions", body), true, body)
	e := r.entry()
	require.Equal(t, 0, e.Failed, "entry %+v", e)
	require.True(t, r.tracker.Available(key(instance.Prefill, r.P[0])), "a slow instance was ejected")
}

// When retries multiply the load beyond the budget, clients get 503 with Retry-After.
func TestRetryBudgetIsSpent(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.Plain, 1, 3, func(o *forward.Options) { o.RetryRatio, o.RetryBurst = 1e-9, 5 })
		for _, d := range r.D {
			script(t, d, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500})
		}
		got := map[int]int{}
		for range 6 {
			a := r.postScenario(q)
			got[a.status]++
			require.False(t, a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") == "",
				"no Retry-After: %v", a.header)
		}
		require.NotEqual(t, 0, got[http.StatusServiceUnavailable], "statuses %v", got)
		// Without the budget, 6 requests would have made 24 legs. The ratio allows a sixth retry, since one is
		// allowed as soon as the share is above 0.
		n := legs(r.D)
		require.True(t, n <= 6+6, "%d legs for 6 requests and a budget of 5 retries", n)
	})
}

// The decode instance counts the whole prompt as cached and none of it as written to the cache. The client
// gets the prefill instance's numbers.
func TestCachedTokens_OfPrefill(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		chatPath:      {`"cached_tokens":0`, `"created_cache_tokens":16`},
		responsesPath: {`"cached_tokens":0`, `"cache_write_tokens":16`},
		messagesPath:  {`"cache_creation_input_tokens":16`, `"cache_read_input_tokens":0`},
		generatePath:  {`"cached_tokens":0`},
	}
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		r := start(t, fakevllm.NIXL, 1, 1, nil)
		more := ""
		if q.stream && (q.path == chatPath || q.path == generatePath) {
			more = `,"stream_options":{"include_usage":true}`
		}
		body := strings.Replace(q.body(more), "the sea", "the sea and of all that swims in it", 1) // more than a block of the cache
		a := r.post(q.path, body)
		require.True(t, a.err == nil && a.status == http.StatusOK, "%d %v", a.status, a.err)
		testkit.Contains(t, string(a.body), want[q.path]...)
		// A message counts the parts of its prompt separately: their sum is the prompt.
		if q.path == messagesPath {
			sums := messageSums(t, a)
			assert.True(t, sums[0] == sums[len(sums)-1] && sums[0] > 16, "prompts of %v tokens: %s", sums, a.body)
			whole := r.post(q.path, strings.Replace(body, "{", `{"ignored":1,`, 1))
			again := messageSums(t, whole)
			assert.Equal(t, sums[0], again[0], "the same prompt has %d and %d tokens", sums[0], again[0])
		}
		r.checkEngines()
	})
}

// messageSums adds up the tokens of the prompt in every usage of a message.
func messageSums(t *testing.T, a answer) (sums []int) {
	t.Helper()
	for _, m := range regexp.MustCompile(`"usage":({[^}]*})`).FindAllStringSubmatch(string(a.body), -1) {
		var u struct {
			Input    int `json:"input_tokens"`
			Creation int `json:"cache_creation_input_tokens"`
			Read     int `json:"cache_read_input_tokens"`
		}
		require.NoError(t, json.Unmarshal([]byte(m[1]), &u))
		sums = append(sums, u.Input+u.Creation+u.Read)
	}
	require.NotEmpty(t, sums, "no usage: %s", a.body)
	return sums
}

// Every instance has been tried: one failed once, the other left while the leg waited. The
// first may be tried again, although the last failure alone would not allow it.
func TestSecondRoundAfterMixedFailures(t *testing.T) {
	t.Parallel()
	for _, role := range instance.Roles() {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			eachAPI(t, both(), func(t *testing.T, q scenario) {
				r := start(t, fakevllm.NIXL, 2, 2, func(o *forward.Options) { o.Fallback = false })
				list := r.engines(role)
				script(t, list[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500, Times: 1})
				script(t, list[1], fakevllm.Fault{Kind: fakevllm.FaultHang, Times: 1})
				done := async(func() answer { return r.postScenario(q) })
				eventually(t, "the second one hangs", func() bool { return list[1].Counters().Faults == 1 })
				r.members.remove(list[1])
				r.checkWhole(q, <-done)
				assert.Equal(t, string(role)+"/status_5xx "+string(role)+"/gone", r.rec.retried(), "retried")
				r.checkEngines()
			})
		})
	}
}
