package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// Addresses on the command line do not show that engines use NIXL, and the default connector is plain.
// That works, but computes each prompt twice, so the proxy warns in its status and its log. pdctl list
// shows the instances as verified, as the proxy reports them.
func TestNIXLWithoutItsConnector(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		args   []string
		warned int
	}{
		{"the default", nil, 2},
		{"as it should be", []string{"--connector", "nixl"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			prefill := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.NIXL, Models: []string{model}})
			decode := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.NIXL, Models: []string{model}})
			etcd := testkit.FreePort(t)
			address, proxy := startBareProxy(t, func(string) []string {
				return append([]string{"--prefill", prefill.Address(), "--decode", decode.Address(), "--etcd-listen", etcd}, tc.args...)
			})
			testkit.Eventually(t, soon, func() error {
				raw := get(t, "http://"+address+"/status")
				var s httpapi.Status
				if err := json.Unmarshal(raw, &s); err != nil {
					return err
				}
				if len(s.Prefill) != 1 || len(s.Decode) != 1 || strings.Count(string(raw), `"warning":"its engine transfers KV caches by NIXL`) != tc.warned {
					return fmt.Errorf("/status: %s", raw)
				}
				return nil
			})
			testkit.Eventually(t, soon, func() error {
				log, err := os.ReadFile(proxy.LogFile())
				if n := strings.Count(string(log), "set --connector nixl"); err != nil || n != tc.warned {
					return fmt.Errorf("the log warns %d times, %v\n%s", n, err, log)
				}
				return nil
			})
			testkit.Eventually(t, soon, func() error {
				list := runProgram(t, "pdctl", "list", "--etcd-endpoints", etcd)
				if strings.Contains(list, "unverified") || strings.Count(list, "  ready  ") != 2 {
					return fmt.Errorf("pdctl list\n%s", list)
				}
				return nil
			})
		})
	}
}
