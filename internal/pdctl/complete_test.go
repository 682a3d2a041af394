package pdctl_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// completes waits until the completion of a command line offers want.
// Completion offers nothing while etcd does not answer within a second.
func (r *rig) completes(want string, args ...string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		_, out, _ := r.run(append([]string{"__complete"}, args...)...)
		names, _, _ := strings.Cut(out, ":4") // the directive: no files
		if got := strings.Join(strings.Fields(names), " "); got != want {
			return fmt.Errorf("%q: %q, want %q", args, got, want)
		}
		return nil
	})
}

// Completion offers the roles, then the addresses in etcd that are not yet on the command line.
func TestCompletion(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:8200", "")
	r.put("/pd/decode/10.0.0.2:8200", "")
	r.put("/pd/prefill/10.0.0.3:8100", "")
	r.put("/pd/decode/$(touch x):1", "") // no address, and unsafe in a shell
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
		r.completes(tc.want, strings.Split(tc.args, " ")...)
	}
}
