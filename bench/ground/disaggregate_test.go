package ground_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/ground"
)

func TestDisaggregatedTable(t *testing.T) {
	t.Parallel()
	run := func(p50, p90, itl float64) ground.Result {
		return ground.Result{TTFT50: p50, TTFT90: p90, ITL90: itl, Busy: 0.5}
	}
	void := run(9, 9, 9)
	void.Void = "busy"
	d := ground.Disaggregated{Policy: "prefix", Runs: 3, Levels: []ground.Level{{Rate: 1.5, Requests: 300, Runs: map[string][]ground.Result{
		"always": {run(1, 4, 0.020), run(1, 5, 0.021), run(1, 3, 0.019), void},
		"auto":   {run(0.5, 3, 0.022), run(0.5, 2, 0.022), run(0.5, 3, 0.022)},
		"never":  {run(2, 8, 0.030)},
	}}}}
	assert.Equal(t, 3, len(ground.Valid(d.Levels[0].Runs["always"])), "valid runs")
	const want = `| load | requests | way | TTFT p50 s | TTFT p90 s | ITL p90 ms | goodput % | computed by decode % | failures | machine busy % |
|---|---|---|---|---|---|---|---|---|---|
| 1.5 | 300 | always | 1.00 | 4.00 | 20.0 | 0.0 | 0.0 | 0 | 50 |
| 1.5 | 300 | auto | 0.50 (-50 %) | 3.00 (-25 %) | 22.0 (+10 %) | 0.0 | 0.0 | 0 | 50 |
| 1.5 | 300 | never | 2.00 | 8.00 | 30.0 | 0.0 | 0.0 | 0 | 50 |
`
	got := d.Table()
	assert.Equal(t, want, got, "got\n%swant\n%s", got, want)
	file := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(file, []byte("before\n<!-- made by make fleet-disaggregate: begin -->\nold\n<!-- made by make fleet-disaggregate: end -->\nafter\n"), 0o600))
	require.NoError(t, d.WriteDoc(file))
	b, _ := os.ReadFile(file)
	if page := string(b); !strings.HasPrefix(page, "before\n<!--") || !strings.HasSuffix(page, "-->\nafter\n") || strings.Contains(page, "old") || !strings.Contains(page, want) {
		t.Error(page)
	}
}
