package ground_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/ground"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

const trace = `
{"timestamp":0,"input_length":1500,"output_length":320,"hash_ids":[0,1,2]}
{"timestamp":0,"input_length":600,"output_length":16,"hash_ids":[0,3]}
{"timestamp":3000,"input_length":2048,"output_length":1,"hash_ids":[0,1,2,4]}
{"timestamp":3000,"input_length":2049,"output_length":160,"hash_ids":[0,1,2,4,5]}
`

func workload(t *testing.T, part ground.Part, rate float64) *ground.Workload {
	t.Helper()
	entries, err := loadgen.ReadTrace(strings.NewReader(trace), 0)
	require.NoError(t, err)
	w, err := ground.NewWorkload(entries, part, rate, 0)
	require.NoError(t, err)
	return w
}

// common returns the number of equal tokens at the beginning of two prompts.
func common(a, b []int) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func TestPrompts_SharedPrefixes(t *testing.T) {
	t.Parallel()
	r := workload(t, ground.Whole, 1).Requests
	const template = 8 // tokens at most
	for _, tt := range []struct{ a, b, tokens int }{{0, 1, 512}, {0, 2, 1500}, {2, 3, 2048}, {1, 3, 512}} {
		got := common(r[tt.a].Prompt(), r[tt.b].Prompt())
		if least := tt.tokens / ground.Shrink; got < least || got > least+template {
			t.Errorf("%d and %d share %d tokens, not %d/%d", tt.a, tt.b, got, tt.tokens, ground.Shrink)
		}
	}
	assert.True(t, r[0].Output == 20 && r[2].Output == 1, "outputs of %d and %d tokens", r[0].Output, r[2].Output)
	n := len(r[0].Prompt())
	assert.True(t, n >= 94 && n <= 104, "%d tokens instead of 1500/%d and the template's", n, ground.Shrink)
}

// TestBlocks_VaryInBytes checks that the same number of tokens has different numbers of bytes.
func TestBlocks_VaryInBytes(t *testing.T) {
	t.Parallel()
	lengths := map[int]bool{}
	for _, r := range workload(t, ground.Whole, 1).Requests {
		text := r.Messages[1].Content
		words := model.Tokenize(text)
		n := strings.Count(text, " ")
		require.Equal(t, len(words), n, "%d words are %d tokens", n, len(words))
		lengths[len(text)] = true
	}
	assert.GreaterOrEqual(t, len(lengths), 2, "all texts have the same length")
}

func TestTimes(t *testing.T) {
	t.Parallel()
	w := workload(t, ground.Whole, 2)
	var got []float64
	for i := range w.Requests {
		got = append(got, w.Requests[i].At.Seconds())
	}
	want := [...]float64{0, 0.75, 1.5, 2.25}
	assert.Equal(t, want, [4]float64(got), "requests at %v", got)
	if second := workload(t, ground.Second, 1); second.Requests[0].At != 0 || len(second.Requests) != 2 {
		t.Errorf("the second half begins at %v and has %d requests", second.Requests[0].At, len(second.Requests))
	}
}

// TestModel checks that every policy runs, that none finds more than a shared cache, and that
// one that keeps conversations on an engine finds more than random.
func TestModel(t *testing.T) {
	t.Parallel()
	entries := conversations()
	w, err := ground.NewWorkload(entries, ground.Whole, 1, 0)
	require.NoError(t, err)
	model := ground.Model{Engines: 4, Engine: ground.DefaultEngine(), Caches: ground.NewCaches(w, 4, 1), Seed: 1}
	found := map[string]float64{}
	for _, name := range append(policy.Names(), ground.Oracle) {
		r, err := model.Run(w, name)
		require.NoError(t, err)
		if r.Requests != len(entries) || r.Spread < 1 || r.OfShared > 1.0001 || r.TTFT90 < r.TTFT50 || r.TTFT50 <= 0 {
			t.Errorf("%s: %+v", name, r)
		}
		found[name] = r.Hits
	}
	assert.Greater(t, found["session"], found["random"],
		"session found %.3f of all tokens, random %.3f", found["session"], found["random"])
	assert.Greater(t, found[ground.Oracle], found["round_robin"],
		"the oracle found %.3f of all tokens, round_robin %.3f", found[ground.Oracle], found["round_robin"])
	if _, err := model.Run(w, "astrology"); err == nil {
		t.Error("no error for an unknown policy")
	}
}

// conversations returns 41 chats of six turns each.
func conversations() []loadgen.Entry {
	var entries []loadgen.Entry
	for turn := range 6 {
		for chat := range 41 {
			ids := []int64{0}
			for i := range 4 * (turn + 1) {
				ids = append(ids, int64(1000*(chat+1)+i))
			}
			entries = append(entries, loadgen.Entry{
				Timestamp: int64(turn*41+chat) / 4 * 3000, InputLength: 512*len(ids) - 100, OutputLength: 50, HashIDs: ids,
			})
		}
	}
	return entries
}
