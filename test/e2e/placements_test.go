package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/explain"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// The next turn of a chat finds its cache through a proxy that has not seen the chat.
func TestNextTurnThroughAnotherProxy(t *testing.T) {
	t.Parallel()
	f, etcd, list := proxies(t, 2)
	for i := range 4 {
		node(t, f, fmt.Sprint("p", i), instance.Prefill, 0, etcd)
	}
	node(t, f, "d", instance.Decode, 0, etcd)
	agree(t, etcd, list, 5)
	turn := strings.Repeat("the sea is high again today ", 150)
	first := `{"model":"` + model + `","prompt":"` + turn + `","max_tokens":2}`
	next := `{"model":"` + model + `","prompt":"` + turn + ` and it is cold","max_tokens":2}`
	explain := func() (p explain.Plan) {
		resp, text, err := harness.Send(t.Context(), http.MethodPost, list[1].URL()+"/route?endpoint=/v1/completions", next, "X-Api-Key", adminKey)
		if err == nil {
			err = json.Unmarshal([]byte(text), &p)
		}
		require.True(t, err == nil && resp.StatusCode == http.StatusOK, "%v: %s", err, text)
		return p
	}
	if p := explain(); p.Prefill.Cached != 0 {
		t.Fatalf("%d tokens are expected of a prompt that was never sent", p.Prefill.Cached)
	}
	testkit.Eventually(t, soon, func() error {
		// A proxy publishes no placements before it knows the other proxy.
		resp, body := posted(t, list[0].URL()+"/v1/completions", "", first)
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", resp.Status, body)
		}
		p := explain()
		if p.Prefill.Cached < len(turn)/5 {
			return fmt.Errorf("the other proxy expects %d tokens in the cache of %s", p.Prefill.Cached, p.Prefill.Chosen)
		}
		return nil
	})
}
