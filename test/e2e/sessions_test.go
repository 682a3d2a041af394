package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/test/agents"
)

// sessionHeader is the header that the test configures; the sessions of a proxy without configuration are
// those of the recordings.
const sessionHeader = "X-Test-Session"

// agentSession is a recorded conversation with other texts and another session.
type agentSession struct {
	name  string
	turns []agents.Exchange
}

// agentSessions returns n sessions of each recorded agent. Tools and instructions are the same in all of an
// agent's sessions, as with the real programs; messages differ.
func agentSessions(t *testing.T, n int) (out []agentSession) {
	t.Helper()
	list, err := agents.Recordings()
	require.True(t, err == nil && len(list) == 3, "%d recordings, %v", len(list), err)
	for _, rec := range list {
		for i := range n {
			s, f := agentSession{name: fmt.Sprint(rec.Agent, " ", i)}, agents.NewFiller()
			for _, x := range rec.Exchanges {
				field := "messages"
				if bytes.Contains(x.Body, []byte(`"input":[`)) && x.Path() == "/v1/responses" {
					field = "input"
				}
				x.Body = refilled(t, f, refilled(t, f, x.Body, field), "prompt_cache_key")
				x.Header = x.Header.Clone()
				for _, name := range []string{"X-Claude-Code-Session-Id", "Session-Id", "X-Session-Affinity", "X-Session-Id"} {
					if v := x.Header.Get(name); v != "" {
						x.Header.Set(name, f.Text(v))
					}
				}
				x.Header.Set(sessionHeader, s.name)
				s.turns = append(s.turns, x)
			}
			out = append(out, s)
		}
	}
	return out
}

// refilled replaces the texts of one field of a body; a text has the same replacement in all turns.
func refilled(t *testing.T, f *agents.Filler, body []byte, field string) []byte {
	t.Helper()
	at, ok := jsonscan.Find(body, 0, field)
	if !ok {
		return body
	}
	filled, err := f.JSON(fmt.Appendf(nil, `{"%s":%s}`, field, body[at.Value:at.End]))
	require.NoError(t, err)
	return jsonscan.Replaced(body, at.Key, at.End, filled[1:len(filled)-1])
}

// Recorded sessions of three agents keep their prefill instance without configuration. The share of cached
// tokens is at most a point below that with a configured session header. First turns do not count if a hash
// of the session decides: their cache hits depend on the ports.
func TestAgentsKeepInstance_ByDefault(t *testing.T) {
	t.Parallel()
	sessions := agentSessions(t, 8)
	f := newFleet(t)
	run := func(name string, args ...string) (all, later float64, moved int) {
		var prefill []*fakevllm.Server
		var addresses []string
		for range 4 {
			s := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"m"}, Mode: fakevllm.NIXL, CacheBlocks: 1 << 16})
			prefill, addresses = append(prefill, s), append(addresses, s.Address())
		}
		decode := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"m"}, Mode: fakevllm.NIXL, CacheBlocks: 1 << 16})
		proxy, err := f.StartProxy(t.Context(), fleet.ProxySpec{Name: name, AdminKey: adminKey, Args: append(args,
			"--connector", "nixl", "--trace-headers", "--prefill", strings.Join(addresses, ","), "--decode", decode.Address())})
		require.NoError(t, err)
		counted := func() (queries, hits float64) {
			for _, p := range prefill {
				c := p.Counters()
				queries, hits = queries+float64(c.CacheQueries), hits+float64(c.CacheHits)
			}
			return queries, hits
		}
		home := map[string]string{}
		var firstQueries, firstHits float64
		for turn := range sessions[0].turns {
			for _, s := range sessions {
				at := ask(t, proxy.URL(), &s.turns[turn])
				if was, ok := home[s.name]; ok && was != at {
					moved++
					t.Logf("%s: turn %d of %s went to %s, the one before to %s", name, turn+1, s.name, at, was)
				}
				home[s.name] = at
			}
			if turn == 0 {
				firstQueries, firstHits = counted()
			}
		}
		queries, hits := counted()
		return 100 * hits / queries, 100 * (hits - firstHits) / (queries - firstQueries), moved
	}
	bound, boundLater, _ := run("bound", "--client-bound", "--client-bound-key", sessionHeader)
	known, knownLater, movedKnown := run("known", "--client-bound")
	plain, plainLater, moved := run("default")
	t.Logf("cached tokens: %.2f %% with a configured header, %.2f %% with --client-bound alone, %.2f %% without configuration; "+
		"after the first turn %.2f %%, %.2f %%, %.2f %%", bound, known, plain, boundLater, knownLater, plainLater)
	assert.Equal(t, 0, moved+movedKnown,
		"%d turns left their session's instance without configuration, %d with --client-bound", moved, movedKnown)
	assert.True(t, plain >= bound-1 && min(plainLater, knownLater) >= boundLater-1,
		"without configuration the hit rate is more than a point below that with a configured header")
}

// ask sends a request and returns the prefill instance.
func ask(t *testing.T, url string, x *agents.Exchange) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), x.Method, url+x.Target, bytes.NewReader(x.Body))
	require.NoError(t, err)
	req.Header = x.Header.Clone()
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	at := resp.Header.Get("X-Pd-Prefill")
	require.True(t, err == nil && resp.StatusCode == http.StatusOK && at != "" && json.Valid(x.Body),
		"%d %v by %q: %.300s", resp.StatusCode, err, at, body)
	return at
}
