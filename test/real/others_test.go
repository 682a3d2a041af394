package real_test

import "testing"

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
	r := newRig(t)
	r.class, r.dialect = "NixlPushConnector", "nixl_push"
	engines := r.start(1)
	r.compare(t, list, want)
	r.checkTransfer(t, engines[1:], "/v1/responses")
}
