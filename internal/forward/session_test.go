package forward_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// pairOf sends a chat request and returns the pair that served it.
func pairOf(r *rig, header ...string) string {
	r.t.Helper()
	a := r.post("/v1/chat/completions", chatBody(true, ""), append(header, "X-PD-Trace", "1")...)
	r.checkComplete(a, true, chatBody(true, ""))
	return a.header.Get("X-Pd-Prefill") + " " + a.header.Get("X-Pd-Decode")
}

// Requests of a session stay on their pair; those without one take turns.
func TestSessionsKeepTheirPair(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 3, 3, func(o *forward.Options) { o.Sessions = forward.Sessions{Header: "session-id"} })
	pairs := map[string]bool{}
	for i := range 8 {
		id := fmt.Sprintf("conversation-%d", i)
		first := pairOf(r, "Session-Id", id)
		pairs[first] = true
		for range 3 {
			next := pairOf(r, "Session-Id", id)
			assert.Equal(t, first, next, "session %s went from %s to %s", id, first, next)
		}
	}
	assert.GreaterOrEqual(t, len(pairs), 2, "all sessions are on %v", pairs)
	turns := map[string]bool{}
	for range 3 {
		turns[pairOf(r)] = true
	}
	assert.Len(t, turns, 3, "without a session 3 requests went to")
	r.checkEngines()
}

// A session whose instance is lost continues on another one.
func TestSession_InstanceLost(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 2, func(o *forward.Options) { o.Sessions = forward.Sessions{Header: "session-id"} })
	first := pairOf(r, "Session-Id", "s")
	for _, d := range r.D {
		if first == r.P[0].Address()+" "+d.Address() {
			d.Close()
		}
	}
	a := r.post("/v1/chat/completions", chatBody(true, ""), "Session-Id", "s")
	require.True(t, a.status == http.StatusOK && a.err == nil, "%d, %v: %s", a.status, a.err, a.body)
	r.checkComplete(a, true, chatBody(true, ""))
}

// The header has no effect while sessions are not bound.
func TestSessionHeader_IgnoredByDefault(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 2, 2, nil)
	a, b := pairOf(r, "Session-Id", "s"), pairOf(r, "Session-Id", "s")
	assert.NotEqual(t, b, a, "both requests went to %s", a)
}

// A session whose instance is overloaded is served by another one, and the answer and the log have the
// reason.
func TestSession_SkipsOverloaded(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 3, func(o *forward.Options) { o.Sessions = forward.Sessions{Header: "session-id"} })
	ask := func() answer {
		a := r.post("/v1/chat/completions", chatBody(true, ""), "Session-Id", "s", "X-PD-Trace", "1")
		r.checkComplete(a, true, chatBody(true, ""))
		return a
	}
	first := ask().header
	home := first.Get("X-Pd-Decode")
	if e := r.entry(); e.Elsewhere() != "" || first.Get("X-Pd-Elsewhere") != "" {
		t.Errorf("while all are idle: %q, %q", e.Elsewhere(), first.Get("X-Pd-Elsewhere"))
	}
	r.sched.Loads.SetOthers(map[string]instance.OthersLoad{home: {InFlight: 9}})
	then, want := ask().header, "decode:session_overloaded("+home+")"
	if e := r.entry(); then.Get("X-Pd-Decode") == home || then.Get("X-Pd-Elsewhere") != want || e.Elsewhere() != want {
		t.Errorf("served by %s: %q in the answer, %q in the log", then.Get("X-Pd-Decode"), then.Get("X-Pd-Elsewhere"), e.Elsewhere())
	}
	r.sched.Loads.SetOthers(nil)
	back := ask().header
	assert.Equal(t, home, back.Get("X-Pd-Decode"), "idle again, and %s serves", back.Get("X-Pd-Decode"))
	r.checkEngines()
}

// A decode-only answer does not report the reason for the pick of a prefill instance that failed.
func TestSession_SkipsOverloadedDecodeOnly(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 3, 1, func(o *forward.Options) { o.Sessions, o.MaxAttempts = forward.Sessions{Header: "session-id"}, 1 })
	home, _, _ := strings.Cut(pairOf(r, "Session-Id", "s"), " ")
	r.entry()
	r.sched.Loads.SetOthers(map[string]instance.OthersLoad{home: {InFlight: 9}})
	for _, p := range r.P {
		script(t, p, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusInternalServerError})
	}
	a := r.post("/v1/chat/completions", chatBody(true, ""), "Session-Id", "s", "X-PD-Trace", "1")
	e := r.entry()
	if a.status != http.StatusOK || e.DecodeOnly != bypass.PrefillFailed || a.header.Get("X-Pd-Elsewhere") != "" || e.Elsewhere() != "" {
		t.Errorf("%d %q: %q in the answer, %q in the log", a.status, e.DecodeOnly, a.header.Get("X-Pd-Elsewhere"), e.Elsewhere())
	}
}

// The session header is passed on: engines may use it, too.
func TestSessionHeadersReachEngines(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"session-id", ""} {
		r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) { o.Sessions = forward.Sessions{Header: name} })
		r.checkComplete(r.post("/v1/chat/completions", chatBody(false, ""), "X-Session-ID", "s-1", "Session-Id", "s-2"), true, chatBody(false, ""))
		for _, e := range []*fakevllm.Server{r.P[0], r.D[0]} {
			got := posted(e)
			if len(got) != 1 || got[0].Header.Get("X-Session-Id") != "s-1" || got[0].Header.Get("Session-Id") != "s-2" {
				t.Errorf("%s, bound by %q: %v", e.Address(), name, got)
			}
		}
	}
}
