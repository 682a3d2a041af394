package metrics_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/bridgemetrics"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// listing is a registry that records every described metric, used or not.
type listing struct {
	*prometheus.Registry
	names []string
}

var fqName = regexp.MustCompile(`fqName: "([a-z_]+)"`)

func (l *listing) MustRegister(list ...prometheus.Collector) {
	for _, c := range list {
		ch := make(chan *prometheus.Desc, 100)
		c.Describe(ch)
		close(ch)
		for d := range ch {
			if m := fqName.FindStringSubmatch(d.String()); m != nil && strings.HasPrefix(m[1], "pd_") {
				l.names = append(l.names, m[1])
			}
		}
	}
}

// Every family is on the page.
func TestMetricFamilies_Documented(t *testing.T) {
	t.Parallel()
	page := testkit.ReadFile(t, "../../../docs/reference/metrics.md")
	l := &listing{Registry: prometheus.NewRegistry()}
	metrics.New(l, "test", 100)
	metrics.Membership{}.Register(l)
	metrics.Hits(nil).Register(l)
	metrics.Load{}.Register(l)
	metrics.Bodies(nil).Register(l)
	metrics.KVEvents{}.Register(l)
	metrics.TLS{}.Register(l)
	metrics.Traces(nil).Register(l)
	metrics.APIKeys{}.Register(l)
	metrics.NewQueue(l, nil, 0)
	metrics.Roles{}.Register(l)
	metrics.ModelRoutes(nil).Register(l)
	l.MustRegister(bridgemetrics.Collector(nil))
	assert.GreaterOrEqual(t, len(l.names), 20, "only %d families: %v", len(l.names), l.names)
	known := map[string]bool{}
	for _, name := range l.names {
		known[name] = true
		assert.Contains(t, string(page), "`"+name+"`",
			"docs/reference/metrics.md does not mention %s", name)
	}
	others := testkit.ReadFile(t, "../../../docs/api.md")
	for _, m := range regexp.MustCompile("pd_[a-z_]+").FindAllString(string(page)+string(others), -1) {
		assert.False(t, !known[m] && !strings.HasPrefix(m, "pd_agent_"),
			"the pages mention %s, which does not exist", m)
	}
}
