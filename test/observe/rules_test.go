package observe_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// promtool accepts the configuration, and the unit tests of the rules pass.
func TestRules(t *testing.T) {
	t.Parallel()
	promtool := tool(t, "promtool")
	for _, args := range [][]string{
		{"check", "config", deploy("prometheus", "prometheus.yml")},
		{"test", "rules", deploy("prometheus", "rules_test.yml")},
	} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Each alert has a unit test in which it fires, and is documented.
func TestAlerts_HaveUnitTests(t *testing.T) {
	t.Parallel()
	rules, tests, page := read(t, deploy("prometheus", "rules.yml")), read(t, deploy("prometheus", "rules_test.yml")), read(t, "../../docs/observe.md")
	alerts := regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllStringSubmatch(rules, -1)
	assert.GreaterOrEqual(t, len(alerts), 10, "only %d alerts", len(alerts))
	for _, a := range alerts {
		assert.Contains(t, tests, `{alertname="`+a[1]+`"}`, "%s fires in no unit test", a[1])
		assert.Contains(t, page, "`"+a[1]+"`", "docs/observe.md does not document %s", a[1])
	}
}

// Rules and dashboard use existing metrics only.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	known := strings.Fields(regexp.MustCompile("[^a-z_]+").ReplaceAllString(read(t, "../../docs/reference/metrics.md"), " "))
	there := map[string]bool{}
	for _, name := range known {
		there[name] = true
	}
	for _, file := range []string{deploy("prometheus", "rules.yml"), deploy("prometheus", "rules_test.yml"), deploy("grafana", "pdmesh.json")} {
		for _, name := range regexp.MustCompile(`\bpd_[a-z_]+`).FindAllString(read(t, file), -1) {
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, suffix)
			}
			assert.False(t, !there[name] && !there[base], "%s: docs/reference/metrics.md does not document %s", file, name)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}
