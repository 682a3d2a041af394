package ground_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/ground"
	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// TestReplay checks that all responses through our proxy are correct, and that caches are hit.
func TestReplay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs the proxy")
	}
	bin := os.Getenv("PD_TEST_BIN")
	if bin == "" {
		bin = t.TempDir()
		require.NoError(t, harness.Build(bin))
	}
	lab, err := target.NewLab(target.Options{BinDir: bin})
	require.NoError(t, err)
	t.Cleanup(func() { _ = lab.Close() })
	etcd, err := lab.StartEtcd(t.Context())
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	w, err := ground.NewWorkload(conversations(), ground.Whole, 1, 0)
	require.NoError(t, err)
	caches := ground.NewCaches(w, 2, 2) // no evictions
	p := &ground.Replay{
		Lab: lab, Etcd: etcd, Workload: w, Engines: 2, Engine: ground.DefaultEngine(), Caches: caches,
		Speed: 200, Proxies: 2, Shared: ground.SharedHits(w, caches, 2),
	}
	r, err := ground.Find("session", ground.Programs{}, nil)
	require.NoError(t, err)
	got, err := p.Run(t.Context(), r)
	require.NoError(t, err)
	assert.True(t, got.Failures == 0 && got.Requests == len(w.Requests) && got.Local == 0, "%+v", got)
	assert.True(t, got.OfShared >= 0.9 && got.OfShared <= 1.1 && got.TTFT50 > 0 && got.RouterCPU > 0,
		"two engines and session: %+v", got)
	p.Warm = w // then the caches have all prompts before the measurement begins
	if warm, err := p.Run(t.Context(), r); err != nil || warm.Requests != got.Requests || warm.Failures != 0 || warm.Hits <= got.Hits {
		t.Errorf("%v %+v", err, warm)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	if _, err := ground.Find("oracle:all", ground.Programs{}, nil); err == nil {
		t.Error("no error for an unknown router")
	}
	if _, err := ground.Find("smg:cache_aware", ground.Programs{SMG: "/nowhere/smg"}, nil); err == nil || !strings.Contains(err.Error(), "not installed") {
		t.Errorf("a router that is not installed: %v", err)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := ground.Report{
		Part: "second", Requests: 10, Runs: 3, Speed: 20, Rate: 1, Shared: 0.4, Absent: []string{"smg:x: not installed"},
		Rows: [][]ground.Result{{
			{Target: "session", TTFT50: 1, TTFT90: 4, Hits: 0.3},
			{Target: "session", TTFT50: 3, TTFT90: 6, Hits: 0.3, Failures: 2},
			{Target: "session", TTFT50: 2, TTFT90: 5, Hits: 0.2},
			{Target: "session", TTFT50: 99, TTFT90: 99, Void: "the machine was 99 % busy"},
		}, {{Target: "peer:policy", TTFT50: 7, Void: "the machine was 90 % busy"}}},
	}
	file := filepath.Join(t.TempDir(), "page.md")
	if err := r.WriteDoc(file); err == nil {
		t.Error("no error for a missing page")
	}
	page := "# Page\n\nbefore\n<!-- made by make fleet-bench: begin -->\nold\n<!-- made by make fleet-bench: end -->\nafter\n"
	require.NoError(t, os.WriteFile(file, []byte(page), 0o600))
	for range 2 { // the second one must not change anything
		require.NoError(t, r.WriteDoc(file))
	}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	text := string(b)
	require.True(t, testkit.Contains(t, text,
		"before\n", "after\n", "| session | 2.00 | 5.00 | 30.0 |", "| peer:policy (void) | 7.00 |",
		"Not measured: smg:x: not installed", "(page/hits.svg)",
	))
	assert.True(t, !strings.Contains(text, "old\n") && strings.Count(text, "| session |") == 1,
		"old figures are left:\n%s", text)
	if svg, err := os.ReadFile(filepath.Join(filepath.Dir(file), "page", "hits.svg")); err != nil || !strings.Contains(string(svg), "one cache for all") {
		t.Errorf("the plot: %v %s", err, svg)
	}
}

func TestOverloadTable(t *testing.T) {
	t.Parallel()
	run := func(rate float64) []ground.Result {
		return []ground.Result{{Requests: 8, GoodRate: rate, GoodTokens: 100 * rate, TTFT90: 4.5, Admitted: [4]float64{1, 1, 1, 0.5}, Refusal: 0.25}}
	}
	o := ground.Overload{Part: "second", Speed: 10, Targets: []string{"on", "absent", "off"}, Levels: []ground.Level{
		{Rate: 1, Runs: map[string][]ground.Result{"on": run(4), "off": run(4)}},
		{Rate: 3, Runs: map[string][]ground.Result{"on": run(3.9), "off": run(1)}},
	}}
	testkit.Contains(t, o.Table(), "| 3 | on | 3.90 (98 %) | 390 (98 %) |", "| 12.5 | 0.50 | 0.25 |",
		"| 3 | off | 1.00 (25 %) | 100 (25 %) |")
	file := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(file, []byte("<!-- made by make fleet-overload: begin -->\n<!-- made by make fleet-overload: end -->\n"), 0o600))
	require.NoError(t, o.WriteDoc(file))
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), o.Table()) || !strings.Contains(string(b), "(page/goodput.svg)") {
		t.Errorf("%v: %s", err, b)
	}
}
