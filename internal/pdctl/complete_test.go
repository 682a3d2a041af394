package pdctl_test

import (
	"strings"
	"testing"
)

// Completion offers the roles, then the addresses in etcd that are not on the command line yet.
func TestCompletion(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:8200", "")
	r.put("/pd/decode/10.0.0.2:8200", "")
	r.put("/pd/prefill/10.0.0.3:8100", "")
	r.put("/pd/decode/$(touch x):1", "") // no address, and nothing that a shell should be handed
	r.put("/pd/decode/--force", "")
	for _, tc := range []struct{ args, want string }{
		{"drain ", "prefill decode both"},
		{"history ", "prefill decode"},
		{"drain decode ", "10.0.0.1:8200 10.0.0.2:8200"},
		{"drain decode 10.0.0.1:8200 ", "10.0.0.2:8200"},
		{"uncordon both ", "10.0.0.3:8100 10.0.0.1:8200 10.0.0.2:8200"},
		{"weight prefill ", "10.0.0.3:8100"},
		{"remove decode ", "10.0.0.1:8200 10.0.0.2:8200"},
		{"drain nonsense ", ""},
	} {
		_, out, _ := r.run(append([]string{"__complete"}, strings.Split(tc.args, " ")...)...)
		names, _, _ := strings.Cut(out, ":4") // the directive: no files
		if got := strings.Join(strings.Fields(names), " "); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.args, got, tc.want)
		}
	}
}
