package forward_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/continuation"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

func continuing(o *forward.Options) { o.ContinueStreams = 3 }

// sixtyBody is a streamed request for 60 tokens.
func sixtyBody(path, more string) string {
	if path == completionsPath {
		return `{"model":"m","prompt":"tell me of the sea","max_tokens":60,"stream":true,"stream_options":{"include_usage":true}` + more + `}`
	}
	return `{"model":"m","messages":[{"role":"user","content":"tell me of the sea"}],"max_tokens":60,"stream":true,"stream_options":{"include_usage":true}` + more + `}`
}

// checkOne checks that a stream is one complete answer, and the answer of an undisturbed engine.
func (r *rig) checkOne(a answer, path, body string, o fakevllm.Options) {
	r.t.Helper()
	want, err := o.Expected(path, []byte(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if a.err != nil || a.status != http.StatusOK {
		r.t.Fatalf("status %d, err %v, continued %q, not continued %q, retried %q: %.2000s", a.status, a.err, r.rec.moved, r.rec.stayed, r.rec.retries, a.body)
	}
	events := a.events()
	text, reasoning, finish := "", "", ""
	ids, roles := map[string]int{}, 0
	var usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
	for _, e := range events[:len(events)-1] {
		var v struct {
			ID      string
			Created int64
			Choices []struct {
				Text  string
				Delta struct{ Role, Content, Reasoning string }
				IDs   []int  `json:"token_ids"`
				PIDs  []int  `json:"prompt_token_ids"`
				Why   string `json:"finish_reason"`
			}
			PIDs  []int           `json:"prompt_token_ids"`
			Usage json.RawMessage `json:"usage"`
		}
		if err := json.Unmarshal([]byte(e), &v); err != nil {
			r.t.Fatalf("%v in %q", err, e)
		}
		ids[fmt.Sprint(v.ID, v.Created)]++
		if len(v.Usage) > 0 && string(v.Usage) != "null" {
			if err := json.Unmarshal(v.Usage, &usage); err != nil {
				r.t.Fatal(err)
			}
		}
		for _, c := range v.Choices {
			text, reasoning, finish = text+c.Text+c.Delta.Content, reasoning+c.Delta.Reasoning, finish+c.Why
			if c.Delta.Role != "" {
				roles++
			}
			if c.IDs != nil || c.PIDs != nil || v.PIDs != nil {
				r.t.Errorf("the client gets token ids: %s", e)
			}
		}
	}
	if text != want[0].Text || reasoning != want[0].Reasoning || finish != want[0].FinishReason {
		r.t.Errorf("text %q, reasoning %q, finish %q;\nwant %q, %q, %q", text, reasoning, finish, want[0].Text, want[0].Reasoning, want[0].FinishReason)
	}
	if len(ids) != 1 || events[len(events)-1] != "[DONE]" || strings.Count(string(a.body), "[DONE]") != 1 || roles > 1 {
		r.t.Errorf("ids %v, %d roles in %s", ids, roles, a.body)
	}
	if usage.Total != usage.Prompt+usage.Completion || usage.Completion != len(want[0].Tokens) {
		r.t.Errorf("usage %+v, want %d tokens", usage, len(want[0].Tokens))
	}
}

// checkMoved checks how often streams went on, and how.
func (r *rig) checkMoved(want ...string) {
	r.t.Helper()
	r.rec.mu.Lock()
	defer r.rec.mu.Unlock()
	if !slices.Equal(r.rec.moved, want) || len(r.rec.stayed) > 0 {
		r.t.Errorf("continued %q, not continued %q, want %q", r.rec.moved, r.rec.stayed, want)
	}
}

// engineOptions are those of the engines of a rig, as far as they change answers.
func engineOptions(more func(*fakevllm.Options)) fakevllm.Options {
	o := fakevllm.Options{Models: []string{model}}
	more(&o)
	return o
}

// However a decode leg is lost in the middle of a stream, the client gets one complete answer.
func TestStreamContinues(t *testing.T) {
	t.Parallel()
	for _, mode := range []fakevllm.Mode{fakevllm.Plain, fakevllm.NIXL, fakevllm.Mooncake, fakevllm.P2P, fakevllm.LMCache, fakevllm.MoRIIOWrite} {
		for _, path := range []string{completionsPath, chatPath} {
			for _, fault := range []fakevllm.Fault{
				{Kind: fakevllm.FaultReset, Tokens: 7}, {Kind: fakevllm.FaultClose, Tokens: 20}, {Kind: fakevllm.FaultErrorEvent, Tokens: 33},
				{Kind: fakevllm.FaultAbort, Tokens: 11}, {Kind: fakevllm.FaultDie, Tokens: 1},
			} {
				t.Run(fmt.Sprintf("%s%s/%s", mode, path, fault.Kind), func(t *testing.T) {
					t.Parallel()
					split := func(o *fakevllm.Options) { o.SplitCharacters, o.Version = true, "0.32.0" }
					r := startTuned(t, mode, 2, 2, tuning{forward: continuing, engine: split, sched: noProbes})
					fault.Times = 1
					script(t, r.D[0], fault)
					body := sixtyBody(path, "")
					a := r.post(path, body)
					r.checkOne(a, path, body, engineOptions(split))
					if !strings.Contains(string(a.body), "\n\n: continued\n\n") {
						t.Errorf("no comment in %s", a.body)
					}
					e := r.entry()
					if e.Outcome != forward.OutcomeOK || e.Continued != 1 {
						t.Errorf("entry %+v", e)
					}
					r.checkEngines()
				})
			}
		}
	}
}

// A stream goes on as many times as it may.
func TestStreamContinuesAgain(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 1, 3, continuing)
			for _, d := range r.D {
				script(t, d, fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: 5, Times: n})
			}
			script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Tokens: 5, Times: n})
			a := r.post(completionsPath, sixtyBody(completionsPath, ""))
			e := r.entry()
			if e.Outcome != forward.OutcomeBroken || e.Continued != 3 || a.err == nil {
				t.Errorf("entry %+v, err %v", e, a.err)
			}
			if !strings.Contains(string(a.body), `"error"`) || strings.Contains(string(a.body), "[DONE]") {
				t.Errorf("the client gets %s", a.body)
			}
			if got := r.rec.stayed; !slices.Equal(got, []string{continuation.ReasonLimit}) {
				t.Errorf("not continued: %v", got)
			}
		})
	}
}
