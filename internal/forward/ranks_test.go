package forward_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

const (
	prefillRanks = 4
	decodeRanks  = 2
)

// startRanks is a rig of a prefill engine with four ranks and a decode engine with two. Each rank has a KV
// cache, and the policies are the defaults of a proxy.
func startRanks(t *testing.T, more ...func(*forward.Options)) *rig {
	t.Helper()
	return startTuned(t, fakevllm.NIXL, 1, 1, tuning{
		// These tests check where a retry goes, not the number of retries.
		forward: func(o *forward.Options) {
			o.RetryRatio = -1
			for _, change := range more {
				change(o)
			}
		},
		sched: prefixPolicy(t),
		engine: func(o *fakevllm.Options) {
			o.DPSize, o.CacheBlocks, o.MaxModelLen = decodeRanks, 1<<14, 1<<14
			if o.Role == fakevllm.RolePrefill {
				o.DPSize = prefillRanks
			}
		},
	})
}

// turnBody returns the body of a chat with this number of earlier turns. Chats have no text in common.
func turnBody(chat, turns int, stream bool) string {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var list []message
	for i := range turns {
		if i > 0 {
			list = append(list, message{"assistant", fmt.Sprintf("answer %d", i)})
		}
		list = append(list, message{"user", strings.Repeat(fmt.Sprintf("chat %d asks %d of the sea; ", chat, i), 30)})
	}
	b, err := json.Marshal(map[string]any{"model": model, "messages": list, "max_tokens": 4, "stream": stream})
	if err != nil {
		panic(err) // texts
	}
	return string(b)
}

// requestsPerRank returns the number of requests that each rank of an engine got in its current incarnation.
func requestsPerRank(s *fakevllm.Server) (list []int64) {
	for _, r := range s.Ranks() {
		list = append(list, r.Requests)
	}
	return list
}

// spread checks that no number is more than a tenth above the mean.
func spread(t *testing.T, what string, list []int64) {
	t.Helper()
	sum := int64(0)
	for _, n := range list {
		sum += n
	}
	mean := float64(sum) / float64(len(list))
	if most := float64(slices.Max(list)); sum == 0 || most/mean > 1.1 {
		t.Errorf("%s: %v, max/mean %.3f", what, list, most/mean)
	} else {
		t.Logf("%s: %v, max/mean %.3f", what, list, most/mean)
	}
}

// eightAtATime calls do n times, with eight calls at a time.
func eightAtATime(n int, do func(i int)) {
	var running sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	running.Wait()
}

// checkTurn sends a turn of a chat and checks the whole answer.
func (r *rig) checkTurn(chat, turn int) answer {
	r.t.Helper()
	body := turnBody(chat, turn, (chat+turn)%2 == 0)
	a := r.post(chatPath, body, "X-PD-Trace", "1")
	want, err := fakevllm.ExpectedAt(chatPath, []byte(body), 0)
	if err != nil {
		r.t.Error(err)
		return a
	}
	if a.err != nil || a.status != http.StatusOK {
		r.t.Errorf("chat %d, turn %d: status %d, %v: %.300s", chat, turn, a.status, a.err, a.body)
	} else if got := a.text(r.t); got != want[0].Text {
		r.t.Errorf("chat %d, turn %d: %q, want %q", chat, turn, got, want[0].Text)
	}
	return a
}

// checkEnginesAndClose is checkEngines, and closes idle connections, so that later tests do not reuse them.
func (r *rig) checkEnginesAndClose() {
	r.t.Helper()
	r.checkEngines()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// If the engines of a pair differ in their number of ranks, all ranks are used evenly. Every answer is
// correct, even for prompts that are too short for a cache.
func TestRanksServe(t *testing.T) {
	r := startRanks(t)
	const n = 400
	eightAtATime(n, func(i int) { r.checkTurn(i, 1) })
	spread(t, "prefill, long prompts", requestsPerRank(r.P[0]))
	spread(t, "decode, long prompts", requestsPerRank(r.D[0]))
	before := requestsPerRank(r.P[0])
	body := chatBody(true, "")
	for range n / 4 {
		r.checkComplete(r.post(chatPath, body), true, body)
	}
	short := requestsPerRank(r.P[0])
	for i := range short {
		short[i] -= before[i]
	}
	spread(t, "prefill, short prompts", short)
	assert.Equal(t, "", r.rec.retried(), "retried")
	r.checkEnginesAndClose()
}

// The next turn of a chat goes to the rank that computed the earlier turns and finds them in its cache,
// although other chats run in between. (With several chats at once, the load may correctly move one of them.)
func TestRanksKeepTheirPrefixes(t *testing.T) {
	r := startRanks(t)
	const chats, turns = 64, 5
	has := make([]string, chats)
	for turn := 1; turn <= turns; turn++ {
		for chat := range chats {
			a := r.checkTurn(chat, turn)
			rank := a.header.Get("X-Pd-Prefill")
			if turn > 1 && rank != has[chat] {
				t.Errorf("turn %d of chat %d went to %s, the one before to %s", turn, chat, rank, has[chat])
			}
			has[chat] = rank
		}
	}
	used := map[string]bool{}
	for _, rank := range has {
		used[rank] = true
	}
	assert.Len(t, used, prefillRanks, "ranks were used")
	// By the engine's numbers, a chat's last turn is cached except for its new part.
	for chat := range chats {
		body := turnBody(chat, turns+1, false)
		a := r.post(chatPath, body)
		var said struct {
			Usage struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		require.NoError(t, json.Unmarshal(a.body, &said), "%s", a.body)
		if possible := said.Usage.Prompt * turns / (turns + 1); said.Usage.Details.Cached < possible*9/10 {
			t.Errorf("chat %d: %d of %d tokens cached", chat, said.Usage.Details.Cached, possible)
		}
	}
	r.checkEnginesAndClose()
}

// Requests that fail on one rank are served by other ranks of its instance, and the instance is not ejected.
func TestRanksFail(t *testing.T) {
	r := startRanks(t)
	script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 500, Rank: "2"})
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultReset, Rank: "1"})
	const n = 100
	eightAtATime(n, func(i int) { r.checkTurn(i, 1) })
	retried := r.rec.retried()
	testkit.Contains(t, retried, "prefill/status_5xx", "decode/lost")
	for _, k := range []instance.Key{key(instance.Prefill, r.P[0]), key(instance.Decode, r.D[0])} {
		assert.True(t, r.tracker.Available(k), "%s is ejected for one of its ranks", k)
	}
	r.checkEnginesAndClose()
}

// An engine that restarts with fewer ranks than its record has serves on its actual ranks. Once the record
// has the new number, all ranks are used.
func TestRanksChange(t *testing.T) {
	r := startRanks(t)
	eightAtATime(64, func(i int) { r.checkTurn(i, 1) })
	again := func(s *fakevllm.Server, ranks int) {
		t.Helper()
		s.Kill()
		s.SetDPSize(ranks)
		require.NoError(t, s.Restart(t.Context()))
	}
	again(r.P[0], 2)
	again(r.D[0], 1)
	for _, k := range []instance.Key{key(instance.Prefill, r.P[0]), key(instance.Decode, r.D[0])} {
		eventually(t, "it is not ejected", func() bool { return r.tracker.Available(k) })
	}
	eightAtATime(64, func(i int) { r.checkTurn(i, 2) })
	testkit.Contains(t, r.rec.retried(), "prefill/rank_missing", "decode/rank_missing")
	for _, n := range append(requestsPerRank(r.P[0]), requestsPerRank(r.D[0])...) {
		if n == 0 {
			t.Errorf("given %v and %v", requestsPerRank(r.P[0]), requestsPerRank(r.D[0]))
		}
	}

	// The agent has seen the new incarnations, the second one with more ranks than ever.
	again(r.P[0], 6)
	r.members.change(func(in *instance.Instance) {
		in.Record.ID += "-next"
		if in.Record.DPSize = 1; in.Role == instance.Prefill {
			in.Record.DPSize = 6
		}
	})
	eventually(t, "it is not ejected", func() bool { return r.tracker.Available(key(instance.Prefill, r.P[0])) })
	r.rec.mu.Lock()
	r.rec.retries = nil
	r.rec.mu.Unlock()
	eightAtATime(300, func(i int) { r.checkTurn(1000+i, 1) })
	spread(t, "prefill in its new incarnation", requestsPerRank(r.P[0]))
	if retried := r.rec.retried(); strings.Contains(retried, "rank_missing") {
		t.Errorf("retried %q", retried)
	}
	r.checkEnginesAndClose()
}

// A client that may name a rank gets it on both engines, if they have it. A rank named by another client is
// ignored.
func TestWantedRanks(t *testing.T) {
	t.Parallel()
	r := startRanks(t)
	for i := range 8 {
		r.post("/v1/chat/completions", turnBody(i, 1, false), "X-Data-Parallel-Rank", "1").require(t, http.StatusOK)
	}
	if p := requestsPerRank(r.P[0]); p[1] == 8 {
		t.Errorf("a client without the right chose its rank: %v", p)
	}
	may := startRanks(t, func(o *forward.Options) { o.Ranked = func(*http.Request) bool { return true } })
	for i, rank := range []string{"1", "1", "3", "3", "x", "-1", ""} {
		a := may.post("/v1/chat/completions", turnBody(i, 1, false), "X-Data-Parallel-Rank", rank)
		require.Equal(t, http.StatusOK, a.status, "%q: %d: %s", rank, a.status, a.body)
		if i == 1 {
			if p, d := requestsPerRank(may.P[0]), requestsPerRank(may.D[0]); !slices.Equal(p, []int64{0, 2, 0, 0}) || !slices.Equal(d, []int64{0, 2}) {
				t.Errorf("rank 1: prefill %v, decode %v", p, d)
			}
		}
		if i == 3 {
			assert.Equal(t, []int64{0, 2, 0, 2}, requestsPerRank(may.P[0]),
				"rank 3, which decode does not have: prefill")
		}
	}
}
