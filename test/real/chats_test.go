package real_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/test/harness"
)

// envDoc names a document into which TestChats writes its measurements.
const envDoc = "PD_TEST_REAL_DOC"

// publishes is the KV events setting of vLLM's example (kv_events.sh), which names no endpoint.
const publishes = `--kv-events-config={"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv-events"}`

const (
	chatTurns = 5
	// chatsAside is the number of concurrent chats. It is odd, so that round_robin with two engines
	// moves every chat.
	chatsAside = 3
)

// chat is the conversation of one client.
type chat struct {
	name     string
	messages []message
	at       string // engine that computed the last turn's prompt
}

// turnResult is the result of a turn.
type turnResult struct {
	tokens, cached int    // of the prompt, counted by vLLM
	expected       int    // number of cached tokens that the policy estimated
	at             string // prefill engine
	text           string
}

// addUserMessage adds a user message of about eight blocks.
func (c *chat) addUserMessage(turn int) {
	var b strings.Builder
	for i := range 8 {
		fmt.Fprintf(&b, "Section %d of part %d for %s: the contributor grants a perpetual license to reproduce the work. ", i, turn, c.name)
	}
	c.messages = append(c.messages, message{"user", b.String()})
}

// sendChat sends the chat to the proxy.
func (r *rig) sendChat(c *chat) (out turnResult, err error) {
	raw, err := json.Marshal(map[string]any{"model": model, "messages": c.messages, "max_tokens": 24, "temperature": 0, "ignore_eos": true})
	if err != nil {
		return out, err
	}
	resp, body, err := harness.Send(r.t.Context(), http.MethodPost, r.proxy.URL()+"/v1/chat/completions", string(raw))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	if err != nil {
		return out, err
	}
	var a struct {
		Choices []struct{ Message message }
		Usage   struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil || len(a.Choices) != 1 {
		return out, fmt.Errorf("%w: %s", err, body)
	}
	out = turnResult{tokens: a.Usage.Prompt, cached: a.Usage.Details.Cached, at: resp.Header.Get("X-Pd-Prefill"), text: a.Choices[0].Message.Content}
	out.expected, err = strconv.Atoi(resp.Header.Get("X-Pd-Cached-Tokens"))
	return out, err
}

// blocks returns names for the whole blocks of a chat's prompt, each made of all tokens up to its end.
func (r *rig) blocks(e *engine, c *chat) (names []string, tokens int) {
	r.t.Helper()
	var tokenized struct {
		Tokens []uint32 `json:"tokens"`
	}
	cached{}.post(r, e, "/tokenize", map[string]any{"model": model, "messages": c.messages}, &tokenized)
	var all strings.Builder
	for i, id := range tokenized.Tokens {
		fmt.Fprint(&all, id, ",")
		if (i+1)%blockSize == 0 {
			names = append(names, all.String())
		}
	}
	return names, len(tokenized.Tokens)
}

// chats runs concurrent chats through a proxy with a policy. It returns the number of tokens, among those
// computed before, that the engines found in their caches.
func (r *rig) chats(t *testing.T, policy string, prefill []*engine) chatFiguresRow {
	t.Helper()
	row := chatFiguresRow{Policy: policy}
	var list []*chat
	system := strings.Repeat("You answer questions of "+policy+" about licenses in plain words. ", 6)
	for i := range chatsAside {
		list = append(list, &chat{name: fmt.Sprintf("%s and chat %c", policy, 'A'+i), messages: []message{{"system", system}}})
	}
	hits := func() (sum float64) {
		for _, e := range prefill {
			sum += r.metric(e, "vllm:prefix_cache_hits_total", "")
		}
		return sum
	}
	expected := func() int {
		return int(r.metric(&engine{address: r.proxy.Address}, "pd_prompt_tokens_total", `what="expected"`))
	}
	before, all := hits(), 0
	computed := map[string]bool{}
	for turn := range chatTurns {
		out, errs := make([]turnResult, len(list)), make(chan error, len(list))
		for i, c := range list {
			c.addUserMessage(turn)
			go func() {
				var err error
				out[i], err = r.sendChat(c)
				errs <- err
			}()
		}
		for range list {
			require.NoError(t, <-errs)
		}
		var now []string
		for i, c := range list {
			names, tokens := r.blocks(prefill[0], c)
			o, possible := out[i], 0
			if tokens != o.tokens {
				t.Fatalf("a prompt of %d tokens, by /tokenize %d", o.tokens, tokens)
			}
			// The last token of a prompt is always computed.
			for possible < (tokens-1)/blockSize && computed[names[possible]] {
				possible++
			}
			possible *= blockSize
			now = append(now, names...)
			logf("%s, turn %d: %d tokens, %d could be in a cache, %d are expected, %d found; at %s", c.name, turn+1, o.tokens, possible, o.expected, o.cached, o.at)
			all += o.cached
			if turn > 0 {
				row.Asked += o.tokens
				row.Possible += possible
				row.Found += min(o.cached, possible) // chats of one turn may also find each other's prefix
				if o.at != c.at {
					row.Moved++
				}
			}
			c.at = o.at
			c.messages = append(c.messages, message{"assistant", o.text})
		}
		for _, name := range now {
			computed[name] = true
		}
		if turn == 0 {
			row.Expected = -expected()
		}
	}
	row.Expected += expected()
	if counted := hits() - before; counted != float64(all) {
		t.Errorf("%s: the answers report %d cached tokens, the prefill engines' counters %v", policy, all, counted)
	}
	return row
}

// TestChats runs chats of five turns on two prefill engines with cache-aware policies: vLLM finds at least
// nine tenths of the tokens that the two engines have computed before.
func TestChats(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	ports, err := fleet.FreePorts(2)
	require.NoError(t, err)
	// Each policy has its own proxy for the same engines, so the etcd is not an embedded one.
	clients, peers := "http://127.0.0.1:"+strconv.Itoa(ports[0]), "http://127.0.0.1:"+strconv.Itoa(ports[1])
	if _, err := r.fleet.Start(t.Context(), fleet.Spec{
		Name: "etcd", Program: "etcd",
		Args:  []string{"--data-dir", t.TempDir(), "--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default=" + peers, "--log-level", "error"},
		Ready: func(ctx context.Context) error { return r.get(ctx, clients+"/health", nil) },
	}); err != nil {
		t.Fatal(err)
	}
	start := func(policy string) {
		t.Helper()
		r.proxy, err = r.fleet.StartProxy(t.Context(), fleet.ProxySpec{
			Name: "proxy-" + policy, EtcdEndpoints: []string{"127.0.0.1:" + strconv.Itoa(ports[0])}, Args: []string{"--prefill-policy", policy, "--trace-headers"},
		})
		require.NoError(t, err)
	}
	policies := []string{"round_robin", "prefix", "kv_aware"}
	start(policies[0])
	prefill := []*engine{r.wrapped("prefill-0", instance.Prefill, publishes), r.wrapped("prefill-1", instance.Prefill, publishes)}
	decode := r.wrapped("decode", instance.Decode)
	t.Cleanup(func() { // engines take time to exit after their agents are killed
		for _, e := range append(prefill, decode) {
			r.killEngine(e)
		}
	})
	figures := chatFigures{
		Version: version.String(), Machine: machine.Describe(), Prefill: len(prefill), Decode: 1, Chats: chatsAside, Turns: chatTurns, Block: blockSize,
	}
	for i, policy := range policies {
		if i > 0 {
			start(policy)
		}
		require.NoError(t, r.proxy.WaitFor(t.Context(), len(prefill), 1))
		if i == 0 {
			for _, e := range append(prefill, decode) {
				list, err := r.engineOf(e)
				require.NoError(t, err)
				require.NoError(t, lowerPriorities(list))
			}
		}
		if policy == "kv_aware" {
			r.awaitFollowed(prefill)
		}
		row := r.chats(t, policy, prefill)
		figures.Rows = append(figures.Rows, row)
		switch {
		case policy == "round_robin" && row.Moved == 0: // otherwise the test could not fail
			t.Errorf("%s moved no chat", policy)
		case policy != "round_robin" && row.Ratio() < 0.9:
			t.Errorf("%s: vLLM found %d of %d tokens that were in a cache", policy, row.Found, row.Possible)
		}
		require.NoError(t, r.proxy.Stop(t.Context()))
	}
	var is struct{ Version string }
	require.NoError(t, r.get(t.Context(), prefill[0].url()+"/version", &is))
	figures.Engine = "vLLM " + is.Version
	logf("%s\n%s", figures.Engine, figures.Table())
	if doc := os.Getenv(envDoc); doc != "" && !t.Failed() {
		require.NoError(t, figures.Save(doc))
	}
}
