package pdctl_test

import (
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/pdctl"
)

// The examples of the help do what they say at a real etcd: those that neither wait for
// something nor ask an engine, a proxy or another etcd.
func TestExamplesRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	here := []string{"list", "get", "status", "history", "drain", "undrain", "cordon", "uncordon", "weight", "allow", "remove", "doctor", "mooncake"}
	ran := map[string]bool{}
	for name, text := range pdctl.AllExamples() {
		for line := range strings.Lines(text) {
			args := arguments(strings.TrimRight(line, "\n"))
			if len(args) == 0 || !slices.Contains(here, args[0]) || slices.Contains(args, "--etcd-endpoints") || slices.Contains(args, "--wait") || slices.Contains(args, "--probe") {
				continue
			}
			ran[args[0]] = true
			if _, err := r.cli.Delete(t.Context(), "/pd/override/", clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
			for _, a := range args { // what is spoken of is there
				a = a[strings.LastIndex(a, "/")+1:]
				if strings.Contains(a, ":") {
					r.put("/pd/prefill/"+a, `{"models":["m"]}`)
					r.put("/pd/decode/"+a, `{"models":["m"]}`)
				}
			}
			if args[0] == "allow" {
				r.run(append([]string{"remove"}, args[1:]...)...)
			}
			code, out, errs := r.run(args...)
			if code != 0 && (args[0] != "doctor" || code != 5) {
				t.Errorf("%s: %q: exit %d\n%s%s", name, args, code, out, errs)
			}
		}
	}
	for _, c := range here {
		if !ran[c] {
			t.Errorf("no example of %s was run", c)
		}
	}
}
