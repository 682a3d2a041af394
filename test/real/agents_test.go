package real_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/test/agents"
)

// agentLength is a context length that holds the agents' prompts of about 20,000 tokens; the tiny model is
// configured with that number of positions.
var agentLength = []string{"--served-model-name", "m", "--max-model-len", "65536", "--hf-overrides", `{"max_position_embeddings":65536}`}

// TestAgents sends the recorded requests of three coding agents, turn by turn, to a single vLLM and to the
// proxy with two engines, and compares the answers. Only the length and the sampling of the answers are
// changed: a few tokens, greedy.
func TestAgents(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	list, err := agents.Recordings()
	require.NoError(t, err)
	r := newRig(t)
	r.more = agentLength
	alone, err := r.launch("alone", "")
	require.NoError(t, err)
	want := map[*agents.Exchange]gist{}
	each := func(do func(rec *agents.Recording, turn int, x *agents.Exchange)) {
		for _, rec := range list {
			for i := range rec.Exchanges {
				do(rec, i, &rec.Exchanges[i])
			}
		}
	}
	each(func(_ *agents.Recording, _ int, x *agents.Exchange) { want[x] = r.turn(t, alone.url(), x) })
	require.NoError(t, alone.Stop(t.Context()))
	decode := r.start(1)[1]
	each(func(rec *agents.Recording, turn int, x *agents.Exchange) {
		computed, received, cached := r.sources(decode)
		got := r.turn(t, r.proxy.URL(), x)
		c, e, l := r.sources(decode)
		computed, received, cached = c-computed, e-received, l-cached
		logf("%s, turn %d: of %v tokens decode computed %v, received %v and had %v", rec.Agent, turn+1, computed+received+cached, computed, received, cached)
		if want[x].refused == "" && (computed != 0 || received == 0) {
			t.Errorf("%s, turn %d: decode computed %v tokens and received %v", rec.Agent, turn+1, computed, received)
		}
		if w := want[x]; got != w {
			t.Errorf("%s, turn %d:\n%+v, want\n%+v", rec.Agent, turn+1, got, w)
		}
	})
}

// sources returns a decode engine's counters of prompt tokens by source.
func (r *rig) sources(e *engine) (computed, received, cached float64) {
	count := func(source string) float64 {
		return r.metric(e, "vllm:prompt_tokens_by_source_total", `source="`+source+`"`)
	}
	return count("local_compute"), count("external_kv_transfer"), count("local_cache_hit")
}

// gist is the content of an answer, independent of the number of tokens in each event.
type gist struct {
	events  string // names of the events, without repetitions
	text    string // text of all deltas
	last    string // usage; on /v1/responses also the whole output
	refused string // the error, if vLLM refuses the request
}

// turn sends a recorded request and returns the gist of its answer.
func (r *rig) turn(t *testing.T, server string, x *agents.Exchange) gist {
	t.Helper()
	again := *x
	again.Body = briefly(x)
	require.NoError(t, again.Ask(t.Context(), r.http, server))
	if again.Status == http.StatusBadRequest { // OpenCode sends earlier answers without an id: vLLM 0.32 refuses that
		return gist{refused: strings.Join(again.Events, "\n")}
	}
	if again.Status != http.StatusOK || len(again.Events) < 4 {
		t.Fatalf("%d with %.2000q", again.Status, again.Events)
	}
	var g gist
	for _, event := range again.Events {
		name, data, _ := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
		if !strings.HasSuffix(g.events, name+" ") {
			g.events += name + " "
		}
		var v struct{ Delta json.RawMessage }
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatalf("%v in %s", err, event)
		}
		var text string
		var block struct {
			Text, Thinking string
			Partial        string `json:"partial_json"`
		}
		if json.Unmarshal(v.Delta, &text) != nil && len(v.Delta) > 0 {
			if err := json.Unmarshal(v.Delta, &block); err != nil {
				t.Fatalf("%v in %s", err, event)
			}
		}
		g.text += text + block.Text + block.Thinking + block.Partial
		if name == "message_delta" || name == "response.completed" {
			last, err := agents.Steady(event)
			require.NoError(t, err)
			g.last = numbered.ReplaceAllString(last, "") // the number of events depends on timing
		}
	}
	return g
}

var (
	limit    = regexp.MustCompile(`"max(_output)?_tokens":[0-9]+,?`)
	numbered = regexp.MustCompile(`,"sequence_number":[0-9]+`)
)

// briefly returns the request with an answer of at most 24 tokens.
func briefly(x *agents.Exchange) []byte {
	most := `"max_output_tokens":24,`
	if x.Path() == "/v1/messages" {
		most = `"max_tokens":24,`
	}
	body := bytes.Replace(limit.ReplaceAll(x.Body, nil), []byte("{"), []byte(`{"temperature":0,`+most), 1)
	return body
}
