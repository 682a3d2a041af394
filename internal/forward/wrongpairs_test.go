package forward_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// half is one side of a pair that may be wrong.
type half struct {
	dialect, version string
	blocks           int
}

func (h half) String() string {
	return strings.Trim(h.dialect+"-"+h.version, "-") + strings.TrimSuffix(fmt.Sprint("-", h.blocks), "-0")
}

// wrongPair is a fleet of one prefill and one decode instance, and the reason why they cannot be paired; ""
// if they can.
type wrongPair struct {
	prefill, decode half
	reason, says    string
}

// wrongPairs returns the matrix: every dialect with every other one, and each with itself in two versions and
// with two sizes of KV blocks. The registry is its source, so it includes new connectors.
func wrongPairs(t *testing.T) (list []wrongPair) {
	t.Helper()
	const older, newer = "0.31.0", "0.32.0"
	for _, p := range connector.Names() {
		for _, d := range connector.Names() {
			if p != d {
				list = append(list, wrongPair{half{p, newer, 0}, half{d, newer, 0}, "connector_mismatch", "with one connector"})
			}
		}
		c, err := connector.New(p)
		require.NoError(t, err)
		for _, v := range [][2]string{{older, newer}, {newer, older}, {newer, newer}, {newer, ""}, {"", older}} {
			w := wrongPair{prefill: half{p, v[0], 0}, decode: half{p, v[1], 0}}
			ofPrefill := c.Terms(&instance.Instance{Record: instance.Record{Version: v[0]}}).Build
			ofDecode := c.Terms(&instance.Instance{Record: instance.Record{Version: v[1]}}).Build
			if ofPrefill != "" && ofDecode != "" && ofPrefill != ofDecode {
				w.reason, w.says = "version_mismatch", "of one vLLM version"
			}
			list = append(list, w)
		}
		for _, size := range [][2]int{{16, 32}, {32, 16}, {16, 16}, {16, 0}, {0, 16}} {
			w := wrongPair{prefill: half{p, newer, size[0]}, decode: half{p, newer, size[1]}}
			same := c.Terms(&instance.Instance{Record: instance.Record{BlockSize: 16}}).Blocks != 0
			if same && size[0] != size[1] && size[0] != 0 && size[1] != 0 {
				w.reason, w.says = "block_mismatch", "KV blocks of one size"
			}
			list = append(list, w)
		}
	}
	return list
}

// Instances that cannot transfer to each other are never paired. If there are no others, the request becomes
// decode-only: its answer is correct and has the reason. Without fallback, or if decode-only is impossible,
// the error has the reason, and no engine gets a request.
func TestWrongPairs(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for _, w := range wrongPairs(t) {
		seen[w.reason]++
		t.Run(w.prefill.String()+"_to_"+w.decode.String(), func(t *testing.T) {
			t.Parallel()
			w.test(t)
		})
	}
	n := len(connector.Names())
	// Two dialects compare versions and four compare block sizes, each in both directions.
	if seen["connector_mismatch"] != n*(n-1) || seen["version_mismatch"] != 4 || seen["block_mismatch"] != 8 || seen[""] != 10*n-12 {
		t.Errorf("the matrix has %v", seen)
	}
}

func (w wrongPair) test(t *testing.T) {
	t.Helper()
	c, err := connector.New(w.decode.dialect)
	require.NoError(t, err)
	for _, fallback := range []bool{true, false} {
		r := start(t, fakevllm.Mode(w.prefill.dialect), 1, 0, func(o *forward.Options) { o.Fallback = fallback })
		r.decodes(fakevllm.Mode(w.decode.dialect))
		var list []*instance.Instance
		for i, s := range []*fakevllm.Server{r.P[0], r.D[0]} {
			h, role := w.prefill, instance.Prefill
			if i == 1 {
				h, role = w.decode, instance.Decode
			}
			one := instanceOf(role, s, fakevllm.Mode(h.dialect))
			one.Record.Version, one.Record.BlockSize = h.version, h.blocks
			list = append(list, one)
		}
		r.members.set(list...)
		body := chatBody(true, "")
		a := r.post("/v1/chat/completions", body)
		e := r.entry()
		switch refused := !fallback || c.NeedsPrefill(); {
		case w.reason == "":
			r.checkComplete(a, true, body)
			assert.True(t, e.DecodeOnly == "" && e.Prefill == r.P[0].Address() && e.Decode == r.D[0].Address(),
				"no pair: %+v", e)
		case refused:
			says := w.says
			if fallback {
				says = w.reason // and that decode-only is not possible
			}
			assert.True(t, a.status == http.StatusServiceUnavailable && strings.Contains(string(a.body), says),
				"fallback %t: %d %s", fallback, a.status, a.body)
			assert.EqualValues(t, 0, legs(r.P)+legs(r.D), "fallback %t: legs", fallback)
		default:
			r.checkComplete(a, true, body)
			if e.DecodeOnly != w.reason || a.header.Get("X-PD-Decode-Only") != w.reason || e.Prefill != "" || legs(r.P) != 0 {
				t.Errorf("decode-only %q, header %q, prefill %q", e.DecodeOnly, a.header.Get("X-PD-Decode-Only"), e.Prefill)
			}
			n := r.D[0].Counters()
			assert.EqualValues(t, 0, n.TransfersLoaded+n.WrongKV+n.KVParams, "decode got a KV transfer: %+v", n)
		}
		r.checkEngines()
	}
}

// decodes starts a decode engine in another mode than the rig's.
func (r *rig) decodes(mode fakevllm.Mode) {
	r.t.Helper()
	o := fakevllm.Options{Role: fakevllm.RoleDecode, Mode: mode, Models: []string{model}, StrictPrefill: true}
	if mode == fakevllm.LMCache {
		o.Ranks = lmcacheRanks
	}
	r.D = append(r.D, fakevllm.StartTest(r.t, o))
}
