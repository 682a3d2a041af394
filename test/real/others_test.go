package real_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/test/real/answers"
)

// TestOtherConnectors tests the proxy with engines that use connectors other than that of
// TestPrefillDecode: the answers equal those of a single vLLM, and decode computes no prompt.
func TestOtherConnectors(t *testing.T) {
	if short() {
		return
	}
	list := posts("/v1/completions", `"model":"tiny","temperature":0,`, [][2]string{
		{"+pushed", `"prompt":"` + long("Pushed:") + `","max_tokens":24`},
		{"+pushed again", `"prompt":"` + long("Again:") + `","max_tokens":24`},
	})
	list = append(list, posts("/v1/chat/completions", `"model":"tiny","temperature":0,`, [][2]string{
		{"+pushed", `"messages":[{"role":"user","content":"` + long("Talked:") + `"}],"max_tokens":24`},
	})...)
	want := newRig(t).reference(list)
	for class, dialect := range map[string]string{"NixlPushConnector": "nixl_push"} {
		t.Run(dialect, func(t *testing.T) {
			r := newRig(t)
			r.class, r.dialect = class, dialect
			engines := r.start(1)
			r.equal(t, list, want)
			r.checkTransfer(t, engines[1:], "/v1/responses")
		})
	}
}

// equal sends requests to the proxy and compares the answers; the same differences as in the table are
// allowed.
func (r *rig) equal(t *testing.T, list []request, want []answers.Answer) {
	f, err := os.Open(filepath.Join("testdata", "allowed.yaml"))
	require.NoError(t, err)
	defer f.Close()
	allowed, err := answers.ReadAllowed(f)
	require.NoError(t, err)
	for i, q := range list {
		got, err := r.send(r.proxy.URL(), q)
		if err != nil {
			t.Errorf("%s: %v", q.name, err)
			continue
		}
		forbidden, _ := allowed.Judge(q.name, answers.Compare(want[i], got))
		for _, d := range forbidden {
			t.Errorf("%s: %v", q.name, d)
		}
	}
}
